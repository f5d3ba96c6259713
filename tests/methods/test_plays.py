"""Strategies of play from the literature, each by what it does on a case that can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from study_players import CODEC, EXPERT, HERMES, PROTOCOL, ScriptedPlayer

from selfcest_agents.codec import TerseCodec
from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.prompt_variants import HermesClonesProtocol
from selfcest_env.types import ROOT, Action, Answer, CloneRequest, Delegate, Limits, Outcome, Role, Status, Task
from selfcest_env.views import Observation
from selfcest_eval.play.config import StrategySpec, StudyConfig
from selfcest_eval.play.costs import costs_of
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.play.strategies import STRATEGIES, Episodes, Instance, PlayContext, Strategy, make_strategy
from selfcest_eval.stats.decision import read_outcome
from selfcest_eval.stats.decision_table import ForcedTriple, find_forced_triples
from selfcest_methods.bandit import Bandit, compute_reward
from selfcest_methods.board import NoteBoard
from selfcest_methods.decide_first import DecideFirst
from selfcest_methods.deciding import find_word, subtract_costs
from selfcest_methods.modes import Modes
from selfcest_methods.orchestrated import (
    NO_ANSWER,
    JoinedCall,
    OrchestratedStrategy,
    make_call,
    parse_parts,
    split_lines,
)
from selfcest_methods.planner import ROLES, Planner
from selfcest_methods.scale import Scale
from selfcest_methods.thread_count import ThreadCount
from selfcest_methods.turns import TurnExtension, TurnLimit
from selfcest_training.config import EvalSet
from selfcest_training.stages.base import TaskMenu
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.registry import make_task_sampler
from selfcest_training.stages.rollout_batch import play_groups

WORDS = WordCounter()
LIMITS = Limits(total_tokens=6000, turn_tokens=80, reply_tokens=40, answer_reserve=8, max_turns=8, max_clones=40)
TASK = Task("t", "Add 2 and 3, then double it.", "10", "own", metadata={"size": 2})

Say = Callable[[Observation], str]


@dataclass(frozen=True)
class Says:
    """An agent that answers by what it reads."""

    say: Say

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        return self.say(observation)


def read(observation: Observation) -> str:
    return "\n".join(message.content for message in observation.messages)


def play(strategy: Strategy, say: Say, limits: Limits = LIMITS, task: Task = TASK) -> Episodes:
    """One task by an agent that follows instructions; tokens are words."""
    context = PlayContext(limits, 0.8, EXPERT, HERMES)
    strategy.check(context)
    player = ScriptedPlayer(Says(say), lambda own: Rules(own, HERMES, WORDS), codec=None)
    (episodes,) = strategy.play([Instance(task, stream_seed("test", 0))], context, player)
    return episodes


def objectives(record: EpisodeRecord) -> list[list[str]]:
    """Of the root's calls, in order."""
    return [
        [record.by_id[child].objective for child in turn.facts.children]
        for turn in record.root.turns
        if turn.facts.outcome is Outcome.DELEGATED
    ]


# Turn control


def never_done(observation: Observation) -> str:
    """Calls a clone at every turn; on its last one it answers with how many it was told are left at each."""
    if observation.role is Role.CLONE:
        return "Answer: 1"
    told = [line for line in read(observation).splitlines() if line.startswith("You have") and "left" in line]
    if observation.is_last:
        return HERMES.render(Answer(" ".join(line.split()[2] for line in told) or "none"))
    return HERMES.render(Delegate((CloneRequest("One."),)))


def test_a_turn_limit_is_told_and_held() -> None:
    (record,) = play(TurnLimit(turns=4), never_done)
    assert (len(record.root.turns), record.answer) == (4, "3 2 1")
    assert record.limits.max_turns == 4
    (silent,) = play(TurnLimit(turns=4, reminders=False), never_done)
    assert (len(silent.root.turns), silent.answer) == (4, "none")
    # Told thrice in six tokens ("You have 3 turns left."), by equal play.
    assert record.cost.prompt_tokens - silent.cost.prompt_tokens == 3 * WORDS.count_text("You have 3 turns left.")
    assert record.cost.generated_tokens - silent.cost.generated_tokens == 2  # "3 2 1" for "none"


def test_an_extension_is_for_who_asks() -> None:
    def asks(observation: Observation) -> str:
        text = never_done(observation)
        if observation.role is Role.ROOT and observation.is_last and observation.turn < 3:
            return "More turns: 1\n" + HERMES.render(Delegate((CloneRequest("One."),)))
        return text

    strategy = TurnExtension(turns=2, extension=2)
    (alone,) = play(strategy, never_done)
    assert (len(alone.root.turns), alone.answer) == (2, "1")
    (longer,) = play(strategy, asks)
    # Asked at the second and at the third turn; the fourth is the last whatever it asks.
    assert (len(longer.root.turns), longer.answer) == (4, "1 1 1")
    assert (longer.limits.max_turns, longer.cost.clones) == (4, 3)


def test_turns_above_the_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gives agents 9 turns, and limits.max_turns is 8; raise it"):
        play(TurnExtension(turns=5, extension=4), never_done)


# Thread count


@pytest.mark.parametrize("threads", [1, 3])
def test_the_policy_is_told_how_many_clones_it_may_use(threads: int) -> None:
    def obeys(observation: Observation) -> str:
        if observation.role is Role.CLONE or observation.exchanges:
            return "Answer: 10"
        (line,) = [line for line in read(observation).splitlines() if line.startswith("You may start")]
        count = int(next(word for word in line.split() if word.isdigit()))
        return HERMES.render(Delegate((CloneRequest("Add."),) * count))

    (record,) = play(ThreadCount(threads=threads), obeys)
    assert (record.cost.clones, record.limits.max_clones, record.answer) == (threads, threads, "10")


def test_more_threads_than_the_limits_allow_are_refused() -> None:
    with pytest.raises(ConfigError, match="limits.max_clones_per_call is 8, and the strategy needs at least 9"):
        ThreadCount(threads=9).check(PlayContext(LIMITS, 0.8, EXPERT, HERMES))


@dataclass
class SpawnPolicy:
    """A softmax over numbers of clones for each number in the root's prompt, trained by the policy gradient."""

    rng: np.random.Generator
    logits: dict[int, np.ndarray] = field(default_factory=dict)

    def say(self, observation: Observation) -> str:
        if observation.role is Role.CLONE or observation.turn:
            return "Answer: 10"
        count = int(self.rng.choice(4, p=self.get_probabilities(self.read_number(observation))))
        return HERMES.render(Delegate((CloneRequest("Add."),) * count)) if count else "Answer: 10"

    @staticmethod
    def read_number(observation: Observation) -> int:
        lines = [line for line in read(observation).splitlines() if line.startswith("You may start")]
        return int(next(word for word in lines[0].split() if word.isdigit())) if lines else 0

    def get_probabilities(self, number: int) -> np.ndarray:
        weights = np.exp(self.logits.setdefault(number, np.zeros(4)))
        return np.asarray(weights / weights.sum())


def train_with_counts(counts: Sequence[int], steps: int = 25) -> SpawnPolicy:
    """Train a policy by the real sampler, where every clone halves the probability of a wrong answer."""
    rng = np.random.default_rng(0)
    policy = SpawnPolicy(rng)
    player = ScriptedPlayer(Says(policy.say), lambda own: Rules(own, HermesClonesProtocol(), WORDS), codec=None)
    sampler = make_task_sampler(PlugIn("thread_count", {"counts": list(counts)}), "rl")
    menu = TaskMenu({"own": EXPERT}, {"own": 1.0}, 8, LIMITS)
    for step in range(steps):
        groups, _ = play_groups(
            player, sampler.propose(step, 4, menu, rng), step=step, seed=0, temperature=1.0, weights={}
        )
        for group in groups:
            clones = [episode.cost.clones for episode in group.episodes]
            assert len({episode.limits.max_clones for episode in group.episodes}) == 1
            returns = np.array([rng.random() < 1 - 0.5 ** (1 + count) for count in clones], dtype=float)
            number = group.episodes[0].limits.max_clones or 0
            assert max(clones) <= number
            probabilities = policy.get_probabilities(number)
            for episode, advantage in zip(group.episodes, returns - returns.mean(), strict=True):
                # By the text, because a call above the number is refused and starts no clone.
                action = HERMES.parse(episode.root.turns[0].generation.text)
                choice = len(action.requests) if isinstance(action, Delegate) else 0
                policy.logits[number] += advantage * (np.eye(4)[choice] - probabilities)
    return policy


def test_a_policy_that_was_trained_with_drawn_numbers_starts_more_clones_at_a_higher_number() -> None:
    policy = train_with_counts([0, 1, 3])
    means = [float(np.arange(4) @ policy.get_probabilities(number)) for number in (0, 1, 3)]
    assert means[1] < 1.5 < 2 < means[2], means


def test_numbers_that_cannot_be_right_are_refused() -> None:
    for options, words in (
        ({"counts": []}, r"counts is \[\]; expected a list that is not empty"),
        ({"counts": [2, 2]}, r"counts is \[2, 2\]"),
        ({"counts": [-1]}, r"counts\[0\] is -1"),
        ({"counts": [1], "sampler": {"name": "knapsack"}}, "'knapsack' allocates rollouts.*depend on the max_clones"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_task_sampler(PlugIn("thread_count", options), "rl")
    sampler = make_task_sampler(PlugIn("thread_count", {"counts": [1, 41]}), "rl")
    with pytest.raises(ConfigError, match="'thread_count' draws max_clones = 41, above limits.max_clones = 40"):
        check_menu(sampler, TaskMenu({"own": EXPERT}, {"own": 1.0}, 8, LIMITS))


# A board of notes


def finds_once(observation: Observation) -> str:
    """The root calls two clones in turn; a clone works for long unless a note tells it the number."""
    if observation.role is Role.CLONE:
        told = read(observation)
        return "Answer: 10" if "the sum is 10" in told else "search " * 60 + "Answer: 10\npost: the sum is 10"
    if len(observation.exchanges) < 2:
        return HERMES.render(Delegate((CloneRequest("Add 2 and 3, then double it."),)))
    return "Answer: 10"


def test_a_note_spares_a_later_clone_the_work() -> None:
    (plain,) = play(Strategy(), finds_once)
    (noted,) = play(NoteBoard(), finds_once)
    assert plain.answer == noted.answer == "10"
    tokens = [[one.turns[0].facts.generated_tokens for one in record.agents[1:]] for record in (plain, noted)]
    assert tokens[0][1] == tokens[0][0] > 60 > 5 > tokens[1][1], "the second clone had the note of the first"
    assert noted.cost.total_tokens < plain.cost.total_tokens, "with the price of showing it"


# Deciding first


def decides(word: str) -> Say:
    """Decides for a way, and then does what it is told to."""

    def say(observation: Observation) -> str:
        told = read(observation)
        if "Do not solve the task yet." in told:
            return f"Answer: {word}"
        if "You have decided to delegate." in told and not observation.exchanges:
            return HERMES.render(Delegate((CloneRequest("Add 2 and 3."),)))
        return "Answer: 10"

    return say


def test_a_decision_is_made_paid_and_kept() -> None:
    strategy = DecideFirst()
    for word, clones in (("alone", 0), ("delegate", 1)):
        episodes = play(strategy, decides(word))
        first, second = episodes
        assert (first.answer, first.cost.clones, second.cost.clones) == (word, 0, clones)
        assert strategy.choose(episodes, ()) == 1
        assert strategy.executed(episodes)
        assert second.limits.total_tokens == 6000 - first.cost.total_tokens
        assert second.limits.delegation is (word == "delegate")
        costs = costs_of(episodes, 0.0, in_series=strategy.in_series)
        assert costs is not None
        assert costs["total_tokens"] == first.cost.total_tokens + second.cost.total_tokens
        # "Answer: alone" is three tokens, and so is "Answer: 10"; a call and its clone come before it.
        call = second.root.turns[0].facts.generated_tokens if clones else 0
        assert costs["critical_path_tokens"] == 3 + call + 3 * clones + 3
        assert costs["peak_context"] == max(first.cost.peak_context, second.cost.peak_context)


def test_what_cannot_be_read_is_the_fallback_and_no_execution() -> None:
    for otherwise, clones in (("delegate", 1), ("alone", 0)):
        strategy = DecideFirst(otherwise=otherwise)  # type: ignore[arg-type]
        episodes = play(strategy, decides("well"))
        assert (len(episodes), episodes[1].cost.clones, strategy.executed(episodes)) == (2, clones, False)


def test_the_decision_sees_keys_and_who_works_alone_the_documents() -> None:
    task = replace(TASK, context={"sums": "two and three"})
    seen: list[str] = []

    def looks(observation: Observation) -> str:
        seen.append(read(observation))
        return decides("alone")(observation)

    play(DecideFirst(), looks, task=task)
    assert ["two and three" in text for text in seen] == [False, True]
    seen.clear()
    play(DecideFirst(reads=True), looks, task=task)
    assert ["two and three" in text for text in seen] == [False, False]


def test_a_budget_that_the_decision_uses_up_leaves_no_answer() -> None:
    first, second = play(DecideFirst(), decides("alone"), replace(LIMITS, total_tokens=300))
    assert second.answer == "10"
    short = replace(LIMITS, total_tokens=first.cost.total_tokens + 5)
    first, second = play(DecideFirst(), decides("alone"), short)
    assert (first.answer, second.root.status, second.answer) == ("alone", Status.PROMPT_TOO_LONG, None)
    assert first.cost.total_tokens + second.cost.total_tokens <= first.cost.total_tokens + 5
    assert second.limits.total_tokens == 5


def test_words_of_decisions() -> None:
    words = ("alone", "delegate")
    assert find_word("Delegate.", words) == "delegate"
    assert find_word("d", words) == "delegate"
    assert find_word("I would work alone here", words) == "alone"
    assert [find_word(text, words) for text in ("alone or delegate", "I do", "", None)] == [None] * 4


def test_what_is_left_is_never_below_nothing() -> None:
    (record,) = play(Strategy(), decides("alone"))
    used = record.cost.total_tokens
    assert subtract_costs(LIMITS, (record,)).total_tokens == 6000 - used
    assert subtract_costs(replace(LIMITS, total_tokens=None), (record,)) == replace(LIMITS, total_tokens=None)
    left = subtract_costs(replace(LIMITS, total_tokens=used + 3, generated_tokens=40), (record,))
    assert (left.total_tokens, left.generated_tokens, left.answer_reserve) == (3, 37, 3)


def test_the_f1_of_explicit_decisions() -> None:
    """Its choices are held against both forced ones of the same weights, and its tokens are of both episodes."""
    specs = {label: StrategySpec() for label in ("decide_first", "plain", "always_delegates", "never_delegates")}
    config = StudyConfig(
        "s",
        tasks={"range_sum": PlugIn("range_sum")},
        eval_sets=(EvalSet("range_sum", "all"),),
        strategies=specs,
        policy=PlugIn("model"),
    )
    assert find_forced_triples(config) == [
        ForcedTriple("plain", "always_delegates", "never_delegates"),
        ForcedTriple("decide_first", "always_delegates", "never_delegates"),
    ]
    both = replace(config, strategies={**specs, "delegate": StrategySpec()})
    assert [triple.free for triple in find_forced_triples(both)] == ["plain", "delegate", "decide_first"]
    reward = make_reward("correct")
    episodes = tuple(reward.score(one) for one in play(DecideFirst(), decides("delegate")))
    place = ResultKey("own", "2", "in", "decide_first", None, 0, "t")
    found = read_outcome(
        Result("k", "p", place, episodes, 1, Grade(1.0, True, True), ending=Status.ANSWERED, costs=None)
    )
    assert (found.delegated, found.reward) == (True, 1.0)
    assert found.tokens == sum(episode.cost.total_tokens for episode in episodes)


# Modes


def test_every_task_is_played_in_the_mode_that_it_is_given() -> None:
    def says(observation: Observation) -> str:
        told = read(observation)
        if "First choose how" in told:
            return "Answer: " + {"1": "instant", "2": "reasoning", "3": "agentic"}[observation.brief.text]
        if "Use your tools" in told and not observation.exchanges:
            return HERMES.render(Delegate((CloneRequest("Add."),)))
        return ("because " * 10 if "step by step" in told else "") + "Answer: 10"

    for task, mode, clones, tokens in (("1", "instant", 0, 3), ("2", "reasoning", 0, 13), ("3", "agentic", 1, None)):
        asked = replace(TASK, prompt=task)
        chosen, played = play(Modes(instant_tokens=20), says, task=asked)
        assert (chosen.answer, played.cost.clones, played.answer) == (mode, clones, "10")
        assert tokens is None or played.cost.generated_tokens == tokens
        (forced,) = play(Modes(mode=mode), says, task=asked)  # type: ignore[arg-type]
        assert forced.cost == played.cost  # no choice is paid
        assert Modes(mode=mode).executed((forced,)) is None  # type: ignore[arg-type]
    assert (chosen.limits.max_turns, chosen.limits.turn_tokens) == (1, 32)


def test_the_instant_mode_is_one_short_turn() -> None:
    (record,) = play(Modes(mode="instant", instant_tokens=5), lambda _: "because " * 9 + "Answer: 10")
    assert (record.answer, len(record.root.turns), record.cost.generated_tokens) == (None, 1, 5)
    assert (record.limits.max_depth, record.limits.max_turns, record.limits.answer_reserve) == (0, 1, 5)


# Selective allocation


def scales(observation: Observation) -> str:
    if observation.role is Role.ROOT:
        raise AssertionError("the root is a script")
    asked = observation.brief.text
    if asked.startswith("Write a plan"):
        return "Answer: 1. Add 2 and 3\n2. Double it"
    if asked.startswith("How hard"):
        return "Answer: 2" if asked.endswith("Add 2 and 3") else "Answer: about 7.5"
    if "Answer at once." in asked:
        return "Answer: 5"
    return "Answer: 11" if observation.agent_id.path[-1] == 4 else "Answer: 10"  # one of three errs


def test_scale_thinks_only_where_it_is_hard() -> None:
    strategy = Scale(threads=3)
    (record,) = play(strategy, scales)
    plan, judged, easy, hard = objectives(record)
    assert [len(call) for call in (plan, judged, easy, hard)] == [1, 2, 1, 3]
    assert "Answer at once." in easy[0]
    assert easy[0].endswith("Found: nothing\nPart: Add 2 and 3")
    assert "Think step by step." in hard[0]
    assert hard[0].endswith("Found:\nAdd 2 and 3: 5\nPart: Double it")
    assert (record.answer, record.cost.clones) == ("10", 7)  # the majority of 10, 10... and 11
    assert strategy.executed((record,))
    # The chain: five turns of the root, and the longest clone of every call.
    clones = [max(len(record.by_id[c].turns) and record.by_id[c].generated_tokens for c in turn.facts.children)
              for turn in record.root.turns[:-1]]  # fmt: skip
    assert record.cost.critical_path_tokens == record.root.generated_tokens + sum(clones)


def test_everything_hard_or_nothing() -> None:
    (easy,) = play(Scale(hard_from=10.0), scales)
    assert [len(call) for call in objectives(easy)] == [1, 2, 1, 1]
    (hard,) = play(Scale(hard_from=0.0, threads=2), scales)
    assert [len(call) for call in objectives(hard)] == [1, 2, 2, 2]
    assert hard.cost.total_tokens > easy.cost.total_tokens


def test_plans_and_scores_as_they_come() -> None:
    def call(*replies: str | None) -> JoinedCall:
        return JoinedCall((CloneRequest("x"),) * len(replies), replies)

    scale = Scale(parts=2)
    assert parse_parts(None, "T", scale.parts) == ["T"]
    assert parse_parts("- a; 2) b\n\nc", "T", scale.parts) == ["a", "b; c"]
    assert scale.find_hard_parts(call("3", None, "who knows", "from 0 to 10: 5")) == [False, True, True, True]
    assert scale.find_hard_parts(call("2/10", "-3", "+7", "1. score: 2", "2 or 3")) == [False, True, True, False, True]


def test_a_difficulty_that_cannot_be_read_is_no_executed_script() -> None:
    for told, executed in (("2/10", True), ("easy", False), ("-2", False)):
        (record,) = play(
            Scale(), lambda o, told=told: scales(o).replace("2", told) if "How" in o.brief.text else scales(o)
        )
        assert Scale().executed((record,)) is executed


def test_a_plan_that_is_none_is_no_executed_script() -> None:
    def nobody(observation: Observation) -> str:
        return "Answer: 2" if "How hard" in observation.brief.text else "I do not know."  # no answer

    (record,) = play(Scale(), nobody)
    assert (record.answer, Scale().executed((record,))) == ("?", False)
    (record,) = play(Scale(), lambda o: nobody(o) if "Write a plan" in o.brief.text else scales(o))
    assert record.answer is not None
    assert not Scale().executed((record,))  # one part, and nobody had planned it


def test_a_script_that_may_call_nobody_answers_with_what_it_has() -> None:
    strategy = Scale()
    (record,) = play(strategy, scales, replace(LIMITS, total_tokens=960))
    assert record.cost.total_tokens <= 960
    assert [len(call) for call in objectives(record)] == [1, 2, 1]
    assert [turn.facts.outcome for turn in record.root.turns] == [Outcome.DELEGATED] * 3 + [Outcome.ANSWERED]
    assert record.answer == "5"  # the first part's result; nothing is left for the second
    (none,) = play(strategy, scales, replace(LIMITS, total_tokens=200))
    assert none.answer == "?"
    assert not strategy.executed((record,))
    assert not strategy.executed((none,))


@pytest.mark.parametrize(
    ("strategy", "clones", "widest"),
    [(Scale(parts=3, threads=2), 10, 3), (Bandit(rounds=3), 6, 1), (Planner(rounds=2, workers=3), 9, 3)],
)
def test_a_script_that_could_not_call_all_its_clones_is_refused(strategy: Strategy, clones: int, widest: int) -> None:
    for per_call in (widest, None):
        strategy.check(
            PlayContext(replace(LIMITS, max_clones=clones, max_clones_per_call=per_call), 0.8, EXPERT, HERMES)
        )
    few = PlayContext(replace(LIMITS, max_clones=clones - 1), 0.8, EXPERT, HERMES)
    words = rf"limits.max_clones is {clones - 1}, and the script may start {clones} clones, {widest} at once; raise"
    with pytest.raises(ConfigError, match=words):
        strategy.check(few)


def test_a_script_starts_no_more_clones_than_it_says() -> None:
    scale, bandit, planner = Scale(parts=2, threads=3, hard_from=0.0), Bandit(rounds=3), Planner(rounds=2, workers=1)
    for strategy, say in (
        (scale, scales),
        (bandit, lambda _: "Answer: 1 1"),
        (planner, lambda _: "Answer: analyst: go on"),
    ):
        (record,) = play(strategy, say)
        assert (record.cost.clones, strategy.executed((record,))) == (strategy.max_script_clones, True)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_as_it_comes_may_be_played_under_the_limits_as_they_come(name: str) -> None:
    if name.startswith("bm25"):
        pytest.importorskip("bm25s")
    make_strategy(name, {}, "strategies.x").check(PlayContext(Limits(), 0.8, EXPERT, HERMES))


@dataclass(frozen=True)
class Own(OrchestratedStrategy):
    """A script of one's own, which does not say how many clones it starts: two at once, then nobody."""

    @property
    def script_turns(self) -> int:
        return 9

    @property
    def max_call_size(self) -> int:
        return 2

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        return calls[-1].replies[0] if calls else None

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        return Answer(self.best_answer(calls) or NO_ANSWER) if calls else make_call(task, task)


def test_a_script_that_does_not_say_its_clones_is_held_to_its_widest_call_alone() -> None:
    (record,) = play(Own(), lambda _: "Answer: 10", replace(LIMITS, max_clones=2))
    assert (record.answer, record.cost.clones, Own().executed((record,))) == ("10", 2, True)
    with pytest.raises(ConfigError, match="limits.max_clones is 1, and the strategy needs at least 2"):
        Own().check(PlayContext(replace(LIMITS, max_clones=1), 0.8, EXPERT, HERMES))


def test_who_changes_a_script_raises_its_version() -> None:
    """Else a study that is resumed would mix what was played by both. Raise it, then pin what is played now."""
    says: dict[Strategy, Say] = {Scale(): scales, Bandit(): lambda _: "Answer: 1 1", Planner(): plans}  # type: ignore[dict-item]
    played = [(objectives(record), record.answer) for s, say in says.items() for record in play(s, say)]
    assert (OrchestratedStrategy.version, digest(played)) == (1, "3e4c6021fd2e86b4b86d9bf944b90664")


def test_equal_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="temperature is 0, so all threads would be equal"):
        Scale().check(PlayContext(LIMITS, 0.0, EXPERT, HERMES))


# A bandit


def test_the_bandit_by_hand() -> None:
    bandit = Bandit(arms=("a", "b"), alpha=1.0)
    assert bandit.choose_arm([]) == 0
    # After one pull: sqrt(ln 2 / 2) = 0.589 on the pulled arm, sqrt(ln 2 / 1) = 0.833 on the other.
    assert bandit.choose_arm([(0, 0.2)]) == 1
    assert bandit.choose_arm([(0, 0.5)]) == 0
    # sqrt(ln 3 / 2) = 0.741 on both: the better mean.
    assert bandit.choose_arm([(0, 0.2), (1, 0.3)]) == 1
    assert Bandit(arms=("a", "b"), alpha=0.0).choose_arm([(0, 0.1)]) == 0


def test_a_judge_that_is_unsure_counts_less() -> None:
    assert compute_reward("0.8 1") == pytest.approx(0.8)
    assert compute_reward("value 0.8, sure 0.9") == pytest.approx(0.8 * (1 + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)))
    assert compute_reward("0.8 0.5") == pytest.approx(0.8 * (1 - math.log(2)))
    assert compute_reward("8/10 100%") == pytest.approx(0.8)
    assert compute_reward("1. value: 0.8\n2. sure: 1") == pytest.approx(0.8)
    assert compute_reward("0 1") == 0.0
    assert [compute_reward(text) for text in ("0.8", "good", None, "7 1", "-0.8 1")] == [None] * 5


def test_a_judge_that_is_not_understood_is_a_try_without_a_reward() -> None:
    bandit = Bandit(arms=("a", "b"), rounds=2, alpha=1.0)
    # Both tried, one without a reward: sqrt(ln 3 / 2) = 0.741 on both, and 0.1 is more than nothing.
    assert bandit.choose_arm([(0, None), (1, 0.1)]) == 1
    assert bandit.choose_arm([(0, None)]) == 1

    def says(told: str) -> Say:
        def say(observation: Observation) -> str:
            asked = observation.brief.text
            if asked.startswith("How good"):
                return told if asked.endswith("Answer: 6") else "Answer: 0.1 1"
            return "Answer: 6" if asked.startswith("a") else "Answer: 10"

        return say

    (record,) = play(bandit, says("Answer: splendid"))
    assert (record.answer, bandit.executed((record,))) == ("10", False)
    (record,) = play(bandit, says("Answer: 0.05 1"))
    assert (record.answer, bandit.executed((record,))) == ("10", True)
    (record,) = play(bandit, lambda o: says("Answer: ?")(o).replace("0.1 1", "?"))
    assert (record.answer, bandit.executed((record,))) == ("6", False)  # none was judged: the first


def test_the_bandit_plays_rounds_and_answers_with_the_best() -> None:
    def says(observation: Observation) -> str:
        asked = observation.brief.text
        if asked.startswith("How good"):
            return "Answer: 0.9 1" if asked.endswith("Answer: 10") else "Answer: 0.1 1"
        return "Answer: 10" if asked.startswith("b") else "Answer: 6"

    bandit = Bandit(arms=("a", "b"), rounds=3, alpha=1.0)
    (record,) = play(bandit, says)
    calls = [call[0].partition("\n")[0] for call in objectives(record)]
    # a earns 0.1: 0.1 + 0.589 < 0.833. b earns 0.9: 0.9 + 0.741 > 0.1 + 0.741.
    assert calls[::2] == ["a", "b", "b"]
    assert (record.answer, record.cost.clones, len(record.root.turns)) == ("10", 6, 7)
    assert bandit.executed((record,))


def test_arms_must_differ() -> None:
    with pytest.raises(ConfigError, match=r"arms are \['a', 'a'\]; expected one or more different instructions"):
        Bandit(arms=("a", "a"))
    with pytest.raises(ConfigError, match=r"arms are \[\]"):
        make_strategy("bandit", {"arms": []}, "strategies.x")


# A hierarchy


def plans(observation: Observation) -> str:
    asked = observation.brief.text
    if not asked.startswith("You plan"):
        part = asked.partition("\n")[2]
        return {"Add 2 and 3": "Answer: 5", "Find what doubling is": "Answer: times two"}.get(part, "Answer: 10")
    if "-> 10" in asked:
        return "Answer: done: 10"
    if "-> 5" in asked:
        return "Answer: checker: Double 5"
    return "Answer: analyst: Add 2 and 3\nresearcher: Find what doubling is\ncook: Boil an egg"


def test_a_planner_revises_its_plan_by_what_comes_back() -> None:
    planner = Planner(rounds=3)
    (record,) = play(planner, plans)
    _, first, again, second, _ = objectives(record)
    assert [text.split("\n")[-1] for text in first] == ["Add 2 and 3", "Find what doubling is"]  # nobody cooks
    assert first[0].startswith(ROLES["analyst"])
    assert "analyst: Add 2 and 3 -> 5\nresearcher: Find what doubling is -> times two" in again[0]
    assert second == [ROLES["checker"] + "\nDouble 5"]
    assert (record.answer, record.cost.clones) == ("10", 1 + 2 + 1 + 1 + 1)
    assert planner.executed((record,))


def test_a_planner_that_never_ends_is_asked_for_the_answer() -> None:
    def says(observation: Observation) -> str:
        if "Write the answer" in observation.brief.text:
            return "Answer: done: 7"
        return "Answer: analyst: go on" if observation.brief.text.startswith("You plan") else "Answer: 3"

    (record,) = play(Planner(rounds=2), says)
    assert [len(call) for call in objectives(record)] == [1, 1, 1, 1, 1]
    assert record.answer == "7"
    (lost,) = play(Planner(rounds=1), lambda o: "Answer: analyst: x" if "plan" in o.brief.text else "Answer: 3")
    assert lost.answer == "3"  # no answer was planned: the last that was found


def test_an_answer_of_a_plan_is_whole() -> None:
    planner = Planner()
    for answer in ("Paris; Lyon", "| a | b |\n| 1 | 2 |", "1. first\n2. second; third", "x: 1\ny: 2"):
        (record,) = play(planner, lambda o, answer=answer: f"Answer: done: {answer}")
        assert record.answer == answer
    assert planner.parse_answer("1. Done: 7\nchecker: Add; done: 8") == "7"
    assert planner.parse_answer("analyst: Add; done: 8") == "8"
    without_answer = ("analyst: is it done: no", "done:", "abandone: 7", "", None)
    assert [planner.parse_answer(text) for text in without_answer] == [None] * 5


def test_a_part_of_a_plan_is_whole() -> None:
    plan = "1. analyst: Add 2 and 3; then double: it; 2) checker: Count\n- Researcher: Look"
    assert Planner().parse_jobs(plan) == [
        ("analyst", "Add 2 and 3; then double: it"),
        ("checker", "Count"),
        ("researcher", "Look"),
    ]
    assert Planner().parse_jobs("analyst: Add; done: 8") == []


@pytest.mark.parametrize(
    "told", ["Answer: I do not know how.", "no answer", "Answer: cook: Boil an egg", "Answer: done:"]
)
def test_a_planner_that_is_not_understood_is_no_executed_script(told: str) -> None:
    (record,) = play(Planner(), lambda _: told)
    assert (record.answer, record.cost.clones, Planner().executed((record,))) == ("?", 1, False)
    (later,) = play(Planner(), lambda o: told if "->" in o.brief.text else plans(o))
    assert (later.cost.clones, Planner().executed((later,))) == (4, False)


def test_roles_in_bold_are_roles() -> None:
    plan = "1. **Researcher**: find **x**\n- *analyst*: Add; **Checker:** Look\n**cook**: Boil an egg"
    jobs = [("researcher", "find **x**"), ("analyst", "Add"), ("checker", "Look")]
    assert Planner().parse_jobs(plan) == jobs
    assert [Planner().parse_answer(f"{head} 7") for head in ("**Done**:", "**done:**", "* **done**:")] == ["7"] * 3
    assert Planner().parse_answer("done: 7\n**analyst:** Add") == "7"


def test_workers_may_delegate_where_depth_lets_them() -> None:
    def says(observation: Observation) -> str:
        asked = observation.brief.text
        if asked.startswith("You plan"):
            return "Answer: done: 10" if "->" in asked else "Answer: analyst: Add"
        if observation.depth == 1 and observation.can_delegate and not observation.exchanges:
            return HERMES.render(Delegate((CloneRequest("Sum."),)))
        return "Answer: 5"

    (record,) = play(Planner(rounds=1), says, replace(LIMITS, max_depth=2))
    assert (record.cost.depth, record.answer) == (2, "10")


def test_roles_are_names() -> None:
    for roles in ({}, {"Done": "x"}, {"done": "x"}):
        with pytest.raises(ConfigError, match="expected names in small letters"):
            Planner(roles=roles)


def test_lines() -> None:
    assert split_lines(" 1. a\n- b; 3) c\n\n") == ["a", "b", "c"]
    assert split_lines(None) == []


# All


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("turn_limit", {"turns": 0}, "turns is 0; expected a whole number >= 1"),
        ("turn_extension", {"extension": 0}, "extension is 0; expected a whole number >= 1"),
        ("thread_count", {"thread": 2}, "Did you mean 'threads'"),
        ("decide_first", {"otherwise": "never"}, "otherwise is 'never'"),
        ("modes", {"mode": "agent"}, "mode is 'agent'"),
        ("modes", {"mode": "instant", "otherwise": "reasoning"}, "otherwise is 'reasoning', which changes nothing"),
        ("modes", {"mode": "agentic", "decision_tokens": 8}, "with mode agentic no choice is asked for; leave it out"),
        ("modes", {"mode": "reasoning", "instant_tokens": 8}, "mode reasoning never plays the instant one"),
        ("scale", {"hard_from": -1}, "hard_from is -1"),
        ("bandit", {"alpha": "much"}, "alpha is 'much'"),
        ("planner", {"rounds": 0}, "rounds is 0"),
    ],
)
def test_options_that_cannot_be(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_strategy(name, options, "strategies.x")


def test_the_embedded_protocol_says_it_in_tokens() -> None:
    """A number in the place of a sentence: the question, and what was decided."""

    def says(observation: Observation) -> str:
        asked = observation.messages[0].content
        if asked.endswith("[0]<asst>"):
            return PROTOCOL.render(Answer("d"))
        return PROTOCOL.render(Answer("7" if asked.endswith("[2]<asst>") else "0"))

    context = PlayContext(LIMITS, 0.8, EXPERT, PROTOCOL)
    player = ScriptedPlayer(Says(says), lambda own: Rules(own, PROTOCOL, CODEC), codec=CODEC)
    (episodes,) = DecideFirst().play([Instance(replace(TASK, prompt="1?"), 5)], context, player)
    assert [episode.answer for episode in episodes] == ["d", "7"]
    assert isinstance(CODEC, TerseCodec)
    assert episodes[0].by_id[ROOT].prompt_tokens == 5  # <root>1?[0]<asst>
