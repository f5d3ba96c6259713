"""Replays through the rollout: what is sampled anew, from which streams, at what price."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import EnginePolicy, Policy, PolicyRequest, RolePolicy, SamplingConfig, ScriptedPolicy
from selfcest_agents.replay import PlayedReplay, play_replays, price_replay, replay_requests
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import RandomActor
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.counterfactual import check_replay, restore
from selfcest_env.errors import CreditError, RecordError
from selfcest_env.protocol import Reply
from selfcest_env.record import EpisodeRecord, Generation, Turn, from_json, to_json
from selfcest_env.replay import Intervention, Replay
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, AgentId, Limits, Role, Status, Task, TurnKey
from selfcest_env.views import Observation

DEFAULT, RESAMPLE = Intervention.DEFAULT, Intervention.RESAMPLE
A, B, C = ROOT.child(0), ROOT.child(1), ROOT.child(2)
TOKENIZER = TinyTokenizer()
CODEC = TerseCodec(TOKENIZER)
LIMITS = Limits(total_tokens=400, turn_tokens=24, reply_tokens=3, answer_reserve=8, max_turns=4, max_clones=6)
RULES = Rules(LIMITS, TerseProtocol(), CODEC)
TASK = Task("t", "3:[4]-[9]", "1", "test", context={"A": "123", "B": "45"})


class Series:
    """A root that asks two clones, then one more, then adds up what it got; digits are drawn, so streams show."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        digit = int(rng.integers(10))
        if observation.role is Role.CLONE:
            return f"<ans>{digit}<end>"
        turn = len(observation.exchanges)
        if turn < 2:
            return f"{digit}<call>+@A<sep>+@B</call>" if turn == 0 else f"{digit}<call>+@B</call>"
        replies = [reply for exchange in observation.exchanges for reply in exchange.replies]
        return f"<ans>{digit}{sum(int(reply.text or 0) for reply in replies)}<end>"


class Watched:
    """A policy that tells which requests it got."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.requests = inner, list[PolicyRequest]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self.requests += requests
        self.inner.submit(requests)

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        return self.inner.poll()


class Late:
    """A policy that hands out its answers one at a time, in an order of its own."""

    def __init__(self, inner: Policy, order: int) -> None:
        self.inner, self.rng, self.done = inner, np.random.default_rng(order), list[tuple[TurnKey, Generation]]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self.inner.submit(requests)

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        self.done += self.inner.poll()
        return [self.done.pop(int(self.rng.integers(len(self.done))))] if self.done else []


def series(count: int = 1) -> list[EpisodeRecord]:
    return rollout([RolloutRequest(f"e{i}", TASK, 100 + i) for i in range(count)], scripted(), RULES)


def scripted() -> ScriptedPolicy:
    return ScriptedPolicy(Series(), CODEC)


def play_one(record: EpisodeRecord, sample: int = 0, **interventions: Intervention) -> PlayedReplay:
    named = {AgentId.parse(name.replace("_", ".")): what for name, what in interventions.items()}
    (result,) = play_replays([record], [Replay.of(record.episode_id, named, sample)], scripted(), RULES).values()
    return result


def texts(record: EpisodeRecord) -> dict[str, list[str]]:
    return {str(agent.agent_id): [turn.generation.text for turn in agent.turns] for agent in record.agents}


def digit(seed: int, agent: AgentId, turn: int, kind: str, sample: int = 0) -> int:
    """What `Series` draws from a stream."""
    return int(np.random.default_rng(turn_seed(seed, agent, turn, kind, sample)).integers(10))


# Worked by hand


def test_a_clone_left_out_of_the_first_call() -> None:
    (factual,) = series()
    result = play_one(factual, root_0=DEFAULT)
    record, seed = result.record, factual.seed
    second, answer = (digit(seed, ROOT, turn, "after") for turn in (1, 2))
    b, c = int(factual.by_id[B].reply or ""), digit(seed, C, 0, "after")
    assert texts(record) == {
        "root": [factual.root.turns[0].generation.text, f"{second}<call>+@B</call>", f"<ans>{answer}{b + c}<end>"],
        "root.0": [],
        "root.1": [factual.by_id[B].turns[0].generation.text],
        "root.2": [f"<ans>{c}<end>"],
    }
    assert record.episode_id == "e0/root.0=default/sample0"
    assert (record.task, record.limits, record.seed, record.reward_terms) == (TASK, LIMITS, seed, None)
    assert record.by_id[B] == factual.by_id[B]  # a sibling's generation is reused, with its grant
    # the clone of the second call was granted more, for root.0 spent nothing: nothing recorded of it was used
    # root.0: <clone> + <doc> A 1 2 3 <asst> is 8, <ans> d <end> is 3; its reply and '!' are 1 long alike
    granted = record.by_id[C].granted_tokens, factual.by_id[C].granted_tokens
    # 400 - prompt 10 - call 10 - root.1 (7 + 3) - replies 6 - call 6, less replies 3 + 3 and an answer 8
    assert granted == (344, 344 - 8 - 3)
    # new: d <call> + @ B </call> is 6, <ans> d <end> 3, <ans> d s [s] <end> 4 or 5
    assert result.generated_tokens == 6 + 3 + 4 + (b + c > 9)
    # before them: <tool> a ! b x <asst> is 6, <clone> + <doc> B 4 5 <asst> 7, <tool> a x <asst> 4
    assert result.prompt_tokens == 6 + 7 + 4


def test_a_clone_of_the_second_call_keeps_the_first_whole() -> None:
    (factual,) = series()
    result = play_one(factual, root_2=DEFAULT)
    for agent_id in (A, B):
        assert result.record.by_id[agent_id] == factual.by_id[agent_id]
    assert result.record.root.turns[:2] == factual.root.turns[:2]
    a, b = (int(factual.by_id[agent].reply or "") for agent in (A, B))
    assert result.record.answer == f"{digit(factual.seed, ROOT, 2, 'after')}{a + b}"
    assert (result.generated_tokens, result.prompt_tokens) == (4 + (a + b > 9), 4)
    assert result.record.cost.clones == 2


def test_a_resampled_clone_draws_from_its_own_stream_and_every_sample_from_another() -> None:
    (factual,) = series()
    samples = [play_one(factual, sample, root_1=RESAMPLE) for sample in range(6)]
    for sample, result in enumerate(samples):
        drawn = [digit(factual.seed, B, 0, "resample", sample), digit(factual.seed, C, 0, "after", sample)]
        assert [result.record.by_id[agent].reply for agent in (B, C)] == [str(number) for number in drawn]
        assert result.record.by_id[A] == factual.by_id[A]
        # the clone's own 3; then 6, 3 and 4 or 5 as above
        assert result.generated_tokens - len(result.record.root.turns[2].generation.token_ids) == 3 + 6 + 3
    assert len({result.record.by_id[B].reply for result in samples}) > 1
    assert len({result.record.root.turns[2].generation.text[5] for result in samples}) > 1, "downstream must be noise"


def test_the_root_resampled_is_another_episode() -> None:
    (factual,) = series()
    result = play_one(factual, root=RESAMPLE)
    assert (result.generated_tokens, result.prompt_tokens) == (
        result.record.cost.generated_tokens, result.record.cost.prompt_tokens,
    )  # fmt: skip
    drawn = [digit(factual.seed, agent, 0, "resample") for agent in (A, B, C)]
    assert [agent.reply for agent in result.record.agents[1:]] == list(map(str, drawn))


# What does not matter


def test_what_the_clone_did_does_not_matter() -> None:
    """Two episodes that differ in a clone alone, and in what came of it, have the same replays of that clone."""
    (factual,) = series()
    other = replace(play_one(factual, 1, root_0=RESAMPLE).record, episode_id="e0")
    assert other.by_id[A] != factual.by_id[A]
    assert other.by_id[C] != factual.by_id[C]
    for what in (DEFAULT, RESAMPLE):
        for sample in range(3):
            assert play_one(other, sample, root_0=what) == play_one(factual, sample, root_0=what)
    assert play_one(other, root_1=DEFAULT) != play_one(factual, root_1=DEFAULT)


def asked(records: Sequence[EpisodeRecord]) -> list[Replay]:
    """Every clone by both interventions, and the coalitions of the first call."""
    single = [
        Replay.of(record.episode_id, {agent.agent_id: what}, sample)
        for record in records
        for agent in record.agents[1:]
        for what in (DEFAULT, RESAMPLE)
        for sample in range(2)
    ]
    return [*single, *(Replay.of(record.episode_id, {A: DEFAULT, B: DEFAULT}) for record in records)]


def test_a_replay_is_what_it_is_in_any_company() -> None:
    records = series(3)
    replays = asked(records)
    alone = {replay: play_replays(records, [replay], scripted(), RULES)[replay] for replay in replays}
    assert play_replays(reversed(records), replays, scripted(), RULES, max_concurrent=2) == alone
    ordinary = [RolloutRequest(f"f{i}", TASK, 7 + i) for i in range(2)]
    requests = replay_requests(records, replays, RULES)
    mixed = rollout([*ordinary, *requests], scripted(), RULES)
    assert mixed[:2] == rollout(ordinary, scripted(), RULES)
    assert {r.replay: price_replay(r, record, RULES) for r, record in zip(requests, mixed[2:], strict=True)} == alone


def test_a_replay_asked_twice_is_played_once_and_requests_may_be_played_again() -> None:
    records = series()
    replays = [Replay.of("e0", {A: DEFAULT}), Replay.of("e0", {C: DEFAULT}), Replay.of("e0", {A: DEFAULT})]
    watched = Watched(scripted())
    results = play_replays(records, replays, watched, RULES)
    assert list(results) == replays[:2]
    # root's second and third turn and root.2; root's third turn
    assert len(watched.requests) == 3 + 1
    requests = replay_requests(records, replays, RULES)
    assert rollout(requests, scripted(), RULES) == rollout(requests, scripted(), RULES)


def test_requests_and_replays_can_be_sent_elsewhere() -> None:
    """Pickled, a request plays as it does here: it names episode and question, and carries no game."""
    records = series()
    here = [RolloutRequest("f0", TASK, 7), *replay_requests(records, asked(records), RULES)]
    there = pickle.loads(pickle.dumps(here))
    assert there == here
    assert rollout(there, scripted(), RULES) == rollout(here, scripted(), RULES)


def test_samples_of_one_question_share_its_beginning_and_nothing_else() -> None:
    records = series()
    replays = [Replay.of("e0", {A: RESAMPLE}, sample) for sample in range(3)]
    requests = replay_requests(records, replays, RULES)
    beginnings = [request.begin(RULES) for request in requests]
    first, kept = beginnings[0]
    assert all(other.log == first.log and other is not first and same is kept for other, same in beginnings[1:])
    rollout(requests, scripted(), RULES)
    assert requests[0].begin(RULES)[0].log == first.log
    assert len({request.turn_seed(A, 0) for request in requests}) == 3


def test_a_policy_sees_a_replay_as_it_sees_an_episode() -> None:
    """Its own account, its own history with ids, and the default reply as a failure; nothing says replay."""
    (factual,) = series()
    watched = Watched(scripted())
    replay = Replay.of("e0", {B: DEFAULT})
    play_replays([factual], [replay], watched, RULES)
    first = watched.requests[0]
    assert first.key == TurnKey(str(replay), ROOT, 1)
    assert first.seed == turn_seed(factual.seed, ROOT, 1, "after", 0)
    assert first.history == (factual.root.turns[0].generation,)
    assert first.observation.exchanges[0].replies == (
        Reply(factual.by_id[A].reply), Reply(failure=Status.ABSENT),
    )  # fmt: skip
    # <root> # A B 3 : [4] - [9] <asst> is 10, d <call> + @ A <sep> + @ B </call> 10, root.0 8 + 3, the replies 6
    assert first.observation.budget.spent.total_tokens == 10 + 10 + 6
    assert first.observation.budget.remaining.total_tokens == 400 - 26 - 11
    assert first.observation.budget.remaining.clones == 6 - 1


# Random trees


def random_rules(seed: int) -> Rules:
    rng = np.random.default_rng(seed)
    limits = Limits(
        total_tokens=int(rng.integers(200, 2500)),
        generated_tokens=None if rng.random() < 0.5 else int(rng.integers(100, 1000)),
        context_tokens=None if rng.random() < 0.5 else int(rng.integers(120, 400)),
        turn_tokens=int(rng.integers(30, 60)),
        reply_tokens=int(rng.integers(0, 6)),
        answer_reserve=int(rng.integers(0, 10)),
        max_turns=int(rng.integers(2, 5)),
        max_clones=int(rng.integers(3, 20)),
        max_depth=int(rng.integers(1, 4)),
        max_reads=2,
    )
    return Rules(limits, TerseProtocol(), CODEC)


def random_replays(record: EpisodeRecord, rng: np.random.Generator) -> list[Replay]:
    """Some questions that the episode can answer, about one to four agents each."""
    replays = []
    for sample in range(3):
        chosen: dict[AgentId, Intervention] = {}
        for index in rng.permutation(len(record.agents))[:8]:
            agent, turns = record.agents[index].agent_id, len(record.agents[index].turns)
            turn = int(rng.integers(max(1, turns)))
            kinds = [RESAMPLE, Intervention.resample(turn), Intervention.again(turn)]
            if agent != ROOT:
                kinds += [DEFAULT, Intervention.replace("7" * int(rng.integers(record.limits.reply_tokens + 1)))]
            what = kinds[int(rng.integers(len(kinds)))]
            if agent == ROOT and len(record.agents) > 1 and sample < 2 and not what.turn:
                continue
            if len(chosen) < 4 and may_join(record, chosen, agent, what):
                chosen[agent] = what
        replays += [Replay.of(record.episode_id, chosen, sample)] if chosen else []
    return replays


def may_join(record: EpisodeRecord, chosen: dict[AgentId, Intervention], agent: AgentId, what: Intervention) -> bool:
    try:
        check_replay(Replay.of(record.episode_id, {**chosen, agent: what}), record)
    except CreditError:
        return False
    return True


def check_random_replays(seed: int, order: int) -> list[tuple[EpisodeRecord, Replay, EpisodeRecord]]:
    rules = random_rules(seed)
    noise = RandomActor(TerseProtocol(), p_answer=0.2, p_delegate=0.7, p_read=0.05)
    (factual,) = rollout([RolloutRequest("e", TASK, seed)], ScriptedPolicy(noise, CODEC), rules)
    replays = random_replays(factual, np.random.default_rng(seed))
    results = play_replays([factual], replays, Late(ScriptedPolicy(noise, CODEC), order), rules)
    assert results == play_replays([factual], replays, ScriptedPolicy(noise, CODEC), rules)
    found = []
    for replay, result in results.items():
        record = result.record
        assert from_json(to_json(record)) == record
        kernel = restore(record, rules)
        kernel.ledger.check()
        cost = record.cost
        # Every cost but the absent clones', and nothing else, is on the ledger.
        assert kernel.ledger.totals()[0] == (cost.total_tokens, cost.generated_tokens, cost.clones)
        absent = {agent for agent, what in replay.interventions if what.absent}
        assert {agent.agent_id for agent in record.agents if agent.absent} == absent
        assert not any(agent.turns for agent in record.agents for gone in absent if agent.agent_id.is_under(gone))
        new = [turn.facts for turn in played_anew(factual, record)]
        assert result.generated_tokens == sum(facts.generated_tokens for facts in new)
        assert result.prompt_tokens == sum(facts.prompt_tokens for facts in new)
        make_reward().score(record)
        # An episode that differs in these agents and in what came of them has the same replay.
        starts = {agent: Intervention.resample(what.turn) for agent, what in replay.interventions}
        anew = Replay.of("e", starts, 99)
        other = play_replays([factual], [anew], ScriptedPolicy(noise, CODEC), rules)[anew].record
        others = [replace(other, episode_id="e")]
        assert play_replays(others, [replay], ScriptedPolicy(noise, CODEC), rules)[replay] == result
        found.append((factual, replay, record))
    return found


def played_anew(factual: EpisodeRecord, record: EpisodeRecord) -> list[Turn]:
    """Turns that are not the very ones of the episode: a generation sampled anew is another object."""
    old = {id(turn.generation) for _, turn in factual.turns()}
    return [turn for _, turn in record.turns() if id(turn.generation) not in old]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_random_replays_of_random_episodes(seed: int, order: int) -> None:
    check_random_replays(seed, order)


@pytest.mark.slow
def test_random_replays_are_worth_the_name() -> None:
    found = [case for seed in range(60) for case in check_random_replays(seed, 0)]
    assert max(len(replay.interventions) for _, replay, _ in found) >= 3
    assert max(agent.depth for _, replay, _ in found for agent, _ in replay.interventions) >= 2
    drawn = [what for _, replay, _ in found for _, what in replay.interventions]
    assert {what.kind for what in drawn} == {"default", "replace", "resample", "again"}
    assert sum(what.turn > 0 for what in drawn) > 30
    kept = [len([*record.turns()]) - len(played_anew(factual, record)) for factual, _, record in found]
    assert max(kept) > 20
    assert sum(count > 2 for count in kept) > 30


# With a model


@pytest.mark.slow
def test_a_replay_with_the_tiny_model_extends_the_stored_ids() -> None:
    engine = TransformersEngine(build_tiny(TinyConfig(), 0), stop_ids=TOKENIZER.stop_ids, max_batch_size=64)
    model = EnginePolicy(engine, CODEC, SamplingConfig(0.8))
    # Clones sample; the root is scripted, so that there are calls.
    policy = RolePolicy({Role.ROOT: ScriptedPolicy(Calls(), CODEC), Role.CLONE: model})
    records = rollout([RolloutRequest(f"e{i}", TASK, 100 + i) for i in range(4)], policy, RULES)
    replays = [replay for replay in asked(records) if replay.sample == 0]
    results = play_replays(records, replays, policy, RULES)
    num_new = 0
    for replay, result in results.items():
        factual = next(record for record in records if record.episode_id == replay.episode_id)
        requests = {(key.agent_id, key.turn): turn for key, turn in factual.turns()}
        for agent in result.record.agents:
            for index, turn in enumerate(agent.turns):
                assert len(turn.generation.prompt_ids) == turn.facts.prompt_tokens
                assert len(turn.generation.token_ids) == turn.facts.generated_tokens
                old = requests.get((agent.agent_id, index))
                num_new += old is None or turn.generation is not old.generation
        assert result.record.root.context_ids[: len(factual.root.turns[0].generation.prompt_ids)] == (
            factual.root.turns[0].generation.prompt_ids
        )
        kernel = restore(result.record, RULES)
        blocks = [message for message in kernel.agents[ROOT].messages if message.role.value == "tool"]
        for turn, block in zip(result.record.root.turns[1:], blocks, strict=True):
            assert turn.generation.prompt_ids == CODEC.encode((block,), kernel.agents[ROOT].boundary)
    assert num_new > len(results)
    resampled = [result.record for replay, result in results.items() if replay.interventions == ((A, RESAMPLE),)]
    assert any(
        record.by_id[A].turns[0].generation.token_ids != factual.by_id[A].turns[0].generation.token_ids
        for record, factual in zip(resampled, records, strict=True)
    )


class NumberedCall:
    """A root that calls one clone with a drawn number and repeats its reply, and clones that repeat the number."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.role is Role.ROOT and not observation.exchanges:
            return f"<call>{rng.integers(1000)}</call>"
        if observation.role is Role.ROOT:
            return f"<ans>{observation.exchanges[-1].replies[0].text}<end>"
        return f"<ans>{observation.brief.text}<end>"


def test_a_clone_that_was_absent_is_not_the_clone_of_another_call() -> None:
    """In a replay of a replay, the new clone got the place and the absence of the old one."""
    policy = ScriptedPolicy(NumberedCall(), CODEC)
    (record,) = rollout([RolloutRequest("e", TASK, 5)], policy, RULES)
    first = Replay.of("e", {A: DEFAULT})
    without = play_replays([record], [first], policy, RULES)[first].record
    assert without.by_id[A].status is Status.ABSENT
    again = Replay.of(str(first), {ROOT: Intervention.resample(0)})
    other = play_replays([without], [again], policy, RULES)[again].record
    assert other.by_id[A].objective != record.by_id[A].objective
    assert other.by_id[A].status is Status.ANSWERED
    assert other.answer == other.by_id[A].objective


class Calls:
    """A root that calls twice, whatever its clones say, and then answers."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return ["<call>+@A<sep>+@B</call>", "<call>+@B</call>", "<ans>1<end>"][len(observation.exchanges)]


# Errors


def test_replays_of_what_was_not_played() -> None:
    records = series(2)
    with pytest.raises(CreditError, match="e1x/root.0=default/sample0: episode 'e1x' is not among the 2 .*'e1'"):
        play_replays(records, [Replay.of("e1x", {A: DEFAULT})], scripted(), RULES)
    with pytest.raises(CreditError, match="e1/root.7=default/sample0: agent root.7 took no turn in episode e1"):
        play_replays(records, [Replay.of("e1", {ROOT.child(7): DEFAULT})], scripted(), RULES)
    with pytest.raises(CreditError, match="root.2/turn0 descends from root.0/turn0"):
        play_replays(records, [Replay.of("e1", {A: DEFAULT, C: RESAMPLE})], scripted(), RULES)
    other = Rules(LIMITS, TerseProtocol(), WordCounter())
    with pytest.raises(RecordError, match="episode e0 cannot be restored"):
        play_replays(records, [Replay.of("e0", {A: DEFAULT})], scripted(), other)
    with pytest.raises(CreditError, match="found two episodes with the id 'e0'"):
        play_replays([*records, records[0]], [], scripted(), RULES)
    assert play_replays(records, [], scripted(), RULES) == {}
