"""Records: exact both ways, strict about what they hold, with costs that add up by hand."""

import json
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_env.errors import RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.record import (
    AgentRecord,
    Cost,
    EpisodeGroup,
    EpisodeRecord,
    Generation,
    Turn,
    build_record,
    from_json,
    read_episodes,
    to_json,
    write_episode,
)
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import (
    ROOT,
    AgentId,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Limits,
    Outcome,
    Role,
    Status,
    Task,
    TurnFacts,
    TurnKey,
    Usage,
)

TASK = Task("t", "2+2", "4", "test", {"A": "doc"}, ("four",), {"size": 2, "rate": 0.1, "easy": True, "name": "x"})


def turn(generated, prompt=1, children=(), refused=None, outcome=Outcome.ANSWERED):
    facts = TurnFacts(prompt, generated, 99, FinishReason.STOP, outcome, None, tuple(children), refused or {})
    return Turn(facts, Generation("x", FinishReason.STOP, (1,), (2, 3), (-0.1, -2.5), 0.8, 3))


def agent(name, *turns, born_at=0, status=Status.ANSWERED):
    agent_id = AgentId.parse(name)
    return AgentRecord(agent_id, "do", ("A",), 50, None if agent_id == ROOT else born_at, status, turns, "7")


def episode(*agents, episode_id="e7", task=TASK, terms=None):
    return EpisodeRecord(episode_id, task, Limits(), 5, agents, terms)


def tree():
    """Two calls in series; the first has two clones, of which the second delegates once."""
    a, b, c = map(ROOT.child, range(3))
    return episode(
        agent("root", turn(10, 20, (a, b), {2: Fault.PROMPT_TOO_LONG}), turn(5, 4, (c,)), turn(2, 3)),
        agent("root.0", turn(30, 6)),
        agent("root.1", turn(7, 6, (b.child(0),)), turn(8, 2)),
        agent("root.1.0", turn(20, 5)),
        agent("root.2", turn(1, 6), born_at=1, status=Status.OUT_OF_TURNS),
        terms={"correct": 1.0, "cost": -0.25},
    )


@pytest.mark.slow
def test_the_critical_path_of_a_chain_longer_than_python_s_recursion():
    depth = 1500
    ids = [ROOT]
    for _ in range(depth):
        ids.append(ids[-1].child(0))
    agents = [agent(str(parent), turn(2, 1, (child,)), turn(3, 1)) for parent, child in pairwise(ids)]
    record = episode(*agents, agent(str(ids[-1]), turn(7, 1)))
    assert record.cost.critical_path_tokens == record.critical_paths[ROOT] == 5 * depth + 7
    assert record.critical_paths[ids[-2]] == 5 + 7


def test_what_every_call_bills_and_every_new_token_reads_by_hand():
    # Sent 3, then the 3 + 2 of before and 1 more; 2 and 3 tokens were generated.
    cost = episode(agent("root", turn(2, 3), turn(3, 1))).cost
    assert cost.billed_tokens == (3 + 2) + (6 + 3)
    assert cost.kv_token_steps == (3 + 4) + (6 + 7 + 8)
    assert cost.total_tokens == 9


def test_costs_by_hand():
    # prompts 27 + 6 + 8 + 5 + 6 = 52; generated 17 + 30 + 15 + 20 + 1 = 83
    # path: 10 + max(30, 7 + 20 + 8 = 35) + 5 + 1 + 2 = 53; contexts 44, 36, 23, 25, 7
    # billed: 30 + 39 + 44, 36, 13 + 23, 25, 7; decoding: (10 of 20, 5 of 34, 2 of 42), 30 of 6, (7 of 6, 8 of 15), ...
    kv = (245 + 180 + 85) + 615 + (63 + 148) + 290 + 6
    assert tree().cost == Cost(135, 52, 83, 53, 44, 217, kv, clones=4, turns=8, depth=2)
    assert all(tree().cost_of(name) == value for name, value in asdict(tree().cost).items())
    assert tree().team_return == 0.75
    assert tree().root.context_ids == (1, 2, 3) * 3


def test_derived_names():
    record = tree()
    assert [agent.role for agent in record.agents] == [Role.ROOT] + [Role.CLONE] * 4
    assert [agent.failed for agent in record.agents] == [False] * 4 + [True]
    assert record.by_id[AgentId((1, 0))].parent_id == AgentId((1,))
    assert record.by_id[AgentId((1, 0))].depth == 2
    keys = [key for key, _ in record.turns()]
    assert keys == sorted(keys)
    assert len(keys) == 8
    assert str(keys[5]) == "e7/root.1/turn1"
    assert record.answer == "7"
    assert sorted([TurnKey("e", ROOT.child(10), 0), TurnKey("e", ROOT.child(2), 9)])[0].agent_id == ROOT.child(2)


finite = st.floats(allow_nan=False, allow_infinity=False)
word = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
ids = st.lists(st.integers(0, 10), max_size=3).map(tuple)
generations = st.lists(st.tuples(st.integers(0, 10**6), finite), max_size=3).flatmap(
    lambda sampled: st.builds(
        Generation,
        word,
        st.sampled_from(FinishReason),
        ids,
        st.just(tuple(token for token, _ in sampled)),
        st.just(tuple(logprob for _, logprob in sampled)),
        finite,
        st.integers(0, 9),
    )
)
agent_ids = ids.map(AgentId)
facts = st.builds(
    TurnFacts,
    st.integers(0),
    st.integers(0),
    st.none() | st.integers(0),
    st.sampled_from(FinishReason),
    st.sampled_from(Outcome),
    st.none() | st.sampled_from(Fault),
    st.lists(agent_ids, max_size=2).map(tuple),
    st.dictionaries(st.integers(0, 99), st.sampled_from(Fault), max_size=2),
)
tasks = st.builds(
    Task,
    word,
    word,
    word,
    word,
    st.dictionaries(word, word, max_size=2),
    st.lists(word, max_size=2).map(tuple),
    st.dictionaries(word, word | st.booleans() | st.integers() | finite, max_size=3),
)
records = st.builds(
    EpisodeRecord,
    word,
    tasks,
    st.builds(Limits, total_tokens=st.none() | st.integers(16), max_depth=st.none() | st.integers(0, 3)),
    st.integers(),
    st.lists(
        st.builds(
            AgentRecord,
            agent_ids,
            word,
            st.lists(word, max_size=2).map(tuple),
            st.none() | st.integers(0),
            st.none() | st.integers(0),
            st.sampled_from(Status),
            st.lists(st.builds(Turn, facts, generations), max_size=2).map(tuple),
            st.none() | word,
        ),
        max_size=3,
    ).map(tuple),
    st.none() | st.dictionaries(word, finite, max_size=2),
)


@settings(max_examples=100, deadline=None)
@given(records)
def test_json_is_exact_both_ways(record):
    line = write_episode(record)
    again = from_json(json.loads(line))
    assert again == record
    assert write_episode(again) == line
    assert line.count("\n") == 1
    assert from_json(to_json(record)) == record
    for first, second in zip(again.task.metadata.values(), record.task.metadata.values(), strict=True):
        assert type(first) is type(second)  # True is not 1


def edited(path, value=None, drop=False):
    data = json.loads(write_episode(tree()))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("seed",), 3.7, "record.seed"),
        (("seed",), "3", "record.seed"),
        (("seed",), True, "record.seed"),
        (("task", "prompt"), None, "record.task.prompt"),
        (("task", "metadata"), {"a": [1]}, "metadata"),
        (("limits", "max_turns"), 2.5, "record.limits.max_turns"),
        (("agents", 1, "status"), "asleep", "record.agents[1].status"),
        (("agents", 0, "agent_id"), "boss", "record.agents[0].agent_id"),
        (("agents", 0, "shared_context"), "AB", "record.agents[0].shared_context"),
        (("agents", 0, "turns", 0, "facts", "generated_tokens"), "5", "turns[0].facts.generated_tokens"),
        (("agents", 0, "turns", 0, "facts", "refused"), {"x": "over_budget"}, "facts.refused"),
        (("agents", 0, "turns", 0, "facts", "colour"), 1, "colour"),
        (("agents", 0, "turns", 0, "generation", "behavior_logprobs"), ["a", -1.0], "behavior_logprobs"),
        (("bogus",), 1, "bogus"),
        (("agents",), None, "record.agents"),
    ],
)
def test_a_wrong_field_is_named(path, value, named):
    with pytest.raises(RecordError) as error:
        from_json(edited(path, value))
    assert named in str(error.value)


@pytest.mark.parametrize("path", [("task",), ("task", "answer"), ("agents", 0, "turns", 0, "facts", "outcome")])
def test_a_missing_field_is_named(path):
    with pytest.raises(RecordError, match=path[-1]):
        from_json(edited(path, drop=True))


def test_log_probs_and_ids_belong_together():
    with pytest.raises(RecordError, match="2 token ids .* 1 behavior_logprobs"):
        Generation("x", token_ids=(1, 2), behavior_logprobs=(-0.5,))
    with pytest.raises(RecordError):
        from_json(edited(("agents", 0, "turns", 0, "generation", "token_ids"), [1]))


def test_what_a_generation_says_is_a_plain_text():
    said = Generation(np.str_("Answer: 4"))
    assert (type(said.text), said.text) == (str, "Answer: 4")
    for text in (None, b"Answer: 4", 4):
        with pytest.raises(RecordError, match="the text of a generation is .*; expected a str"):
            Generation(text)


def test_missing_is_not_zero():
    with pytest.raises(RecordError, match="e7 has not been scored"):
        _ = episode(agent("root", turn(1))).team_return


def test_groups_hold_episodes_of_one_task():
    one, other = episode(agent("root", turn(1))), episode(task=Task("u", "", "", ""), episode_id="e8")
    assert EpisodeGroup(TASK, (one, one)).episodes == (one, one)
    with pytest.raises(RecordError, match="has no episode"):
        EpisodeGroup(TASK, ())
    with pytest.raises(RecordError, match="episode e8 is of task u, not t"):
        EpisodeGroup(TASK, (one, other))


def test_only_finished_and_complete_episodes_are_recorded():
    kernel = Kernel(TASK, Rules(Limits(), HermesProtocol(), WordCounter()))
    kernel.step(ROOT, Delegate(tuple(CloneRequest("a") for _ in range(2))), Usage(3))
    generations = {(ROOT, 0): Generation("x"), (ROOT, 1): Generation("x")}
    with pytest.raises(RecordError, match=r"has not ended; root.0, root.1 may still act"):
        build_record(kernel, generations, episode_id="e", seed=0)
    kernel.step(ROOT.child(1), Answer("1"), Usage(4))
    kernel.step(ROOT.child(0), Answer("1"), Usage(9))
    kernel.step(ROOT, Answer("4"), Usage(2))
    with pytest.raises(RecordError, match=r"no generation for turns \[0\] of root.0"):
        build_record(kernel, generations, episode_id="e", seed=0)
    generations |= {(ROOT.child(i), 0): Generation("x") for i in range(2)}
    record = build_record(kernel, generations, episode_id="e", seed=0)
    assert [str(a.agent_id) for a in record.agents] == ["root", "root.0", "root.1"]
    assert record.cost.critical_path_tokens == 3 + 9 + 2
    assert record.reward_terms is None
    assert record.cost.total_tokens == kernel.ledger.totals()[0].total_tokens


def test_files_name_the_line(tmp_path):
    path, good = tmp_path / "episodes.jsonl", write_episode(tree())
    path.write_text(good * 2, encoding="utf-8")
    assert list(read_episodes(path)) == [tree()] * 2
    for bad in ("{", "[]", '{"seed": 1}', ""):
        path.write_text(good + bad + "\n" + good, encoding="utf-8")
        with pytest.raises(RecordError, match="line 2: "):
            list(read_episodes(path))


def test_half_of_a_surrogate_pair_can_be_written_and_read(tmp_path):
    """A player's text may hold one; the record was then lost in a UnicodeEncodeError."""
    data = to_json(tree())
    data["task"]["prompt"] = "2\ud800 + 2 é"
    odd = from_json(data)
    file = tmp_path / "episodes.jsonl"
    file.write_text(write_episode(odd), encoding="utf-8")
    assert list(read_episodes(file)) == [odd]
    assert "é" in file.read_text(encoding="utf-8")
