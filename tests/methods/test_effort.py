"""Adaptive effort control: the policy is told a share of the usual tokens, and is paid only within it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import agent, turn
from study_players import EXPERT, HERMES, ScriptedPlayer
from test_plays import LIMITS, WORDS, Says

from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.kernel import Kernel
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import make_source
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.tasks.source import Style, identity_of
from selfcest_env.tasks.splits import TRAIN, part_of
from selfcest_env.types import ROOT, Delegate, Limits, Task
from selfcest_env.views import Observation, observe
from selfcest_eval.play.strategies import Instance, PlayContext, make_strategy
from selfcest_methods.effort import Effort, TasksWithEffort, hide_effort, tell_effort
from selfcest_training.config_file import load_config
from selfcest_training.families import TEST_FRACTION, make_families
from selfcest_training.stages.base import PlannedGroup, TaskMenu
from selfcest_training.stages.registry import make_task_sampler

ROOT_FOLDER = Path(__file__).parents[2]
RIGHT = Grade(1.0, True, True)
WRONG = Grade(0.0, False, True)
FORM = "[{percent}]{task}"
NEEDED = {"easy": 4, "hard": 12}  # tokens of thought after which an answer is right with probability 0.63


@dataclass(frozen=True)
class Kind:
    """A source of questions of one kind. The prompt names the kind and not the tokens that it needs."""

    kind: str

    def draw(self, rng: np.random.Generator) -> Task:
        return Task(f"{self.kind}-{rng.integers(10**9)}", f"{self.kind}?", "1", self.kind)


MENU = TaskMenu({kind: Kind(kind) for kind in NEEDED}, dict.fromkeys(NEEDED, 1.0), 8)


def make_sampler(**options: Any) -> Effort:
    sampler = make_task_sampler(PlugIn("effort", {"form": FORM, **options}), "rl")
    assert isinstance(sampler, Effort)
    return sampler


def episode(task: Task, tokens: int) -> EpisodeRecord:
    """An episode of `tokens` tokens in all, one of which is the prompt."""
    return EpisodeRecord("e", task, Limits(), 0, (agent(ROOT, turn((1,), (2,) * (tokens - 1))),))


def propose(sampler: Effort, count: int, seed: int = 0) -> list[PlannedGroup]:
    return list(sampler.propose(1, count, MENU, np.random.default_rng(seed)))


def test_the_effort_is_drawn_for_each_group_and_stands_in_its_prompt() -> None:
    efforts = []
    for plan in propose(make_sampler(between=[0.2, 0.99]), 400):
        effort = plan.task.metadata["effort"]
        assert plan.task.prompt == f"[{round(100 * float(effort))}]{plan.task.metadata['family']}?"
        assert plan.num_rollouts == 8
        assert plan.limits is None, "the share is no limit of the game"
        efforts.append(float(effort))
    assert 0.2 <= min(efforts) < 0.25 < 0.95 < max(efforts) <= 0.99
    assert np.mean(efforts) == pytest.approx(0.595, abs=0.03)


def test_an_answer_is_paid_within_the_share_of_its_bucket_s_mean_length() -> None:
    sampler = make_sampler(between=[0.5, 0.5], decay=0.5)
    term = make_reward("correct", paid={"name": "within_effort", "weight": 2.0}).terms["paid"]
    (fresh, *_) = propose(sampler, 1)
    assert "allowed_tokens" not in fresh.task.metadata
    assert [term(episode(fresh.task, 999), grade) for grade in (RIGHT, WRONG)] == [2.0, 0.0], "no mean is known yet"

    def observe(step: int, kind: str, *lengths: int) -> None:
        task = Task("t", "?", "1", kind, metadata={"family": kind})
        sampler.observe(step, [EpisodeGroup(task, tuple(episode(task, length) for length in lengths))])

    observe(0, "easy", 10, 30)
    observe(0, "hard", 100, 100)
    allowed = {plan.task.metadata["family"]: plan.task.metadata["allowed_tokens"] for plan in propose(sampler, 20)}
    assert allowed == {"easy": 10.0, "hard": 50.0}
    observe(1, "easy", 50)  # weighs 1, the two earlier ones 0.5 each
    plans = {plan.task.metadata["family"]: plan for plan in propose(sampler, 20)}
    easy = plans["easy"].task
    assert easy.metadata["allowed_tokens"] == 0.5 * (0.5 * 40 + 50) / 2
    assert [term(episode(easy, length), RIGHT) for length in (17, 18)] == [2.0, 0.0]
    assert term(episode(easy, 17), WRONG) == 0.0


class LengthPolicy:
    """A softmax over lengths for each prompt that it can tell apart, trained by the policy gradient."""

    LENGTHS = np.arange(2, 41, 2)

    def __init__(self) -> None:
        self.logits: dict[tuple[str, int], np.ndarray] = {}

    def get_probabilities(self, prompt: str) -> tuple[tuple[str, int], np.ndarray]:
        percent, kind = re.fullmatch(r"\[(\d+)\](\w+)\?", prompt).groups()  # type: ignore[union-attr]
        key = (kind, int(percent) // 50)
        weights = np.exp(self.logits.setdefault(key, np.zeros(len(self.LENGTHS))))
        return key, weights / weights.sum()

    def mean_length(self, kind: str, effort: float) -> float:
        prompt = tell_effort(Task("t", f"{kind}?", "1", kind), effort, FORM).prompt
        return float(self.LENGTHS @ self.get_probabilities(prompt)[1])

    def learn(self, key: tuple[str, int], chosen: np.ndarray, advantages: np.ndarray, rate: float = 0.5) -> None:
        probabilities = np.exp(self.logits[key]) / np.exp(self.logits[key]).sum()
        for index, advantage in zip(chosen, advantages, strict=True):
            self.logits[key] += rate * advantage * (np.eye(len(self.LENGTHS))[index] - probabilities)


def train(terms: Mapping[str, Any]) -> LengthPolicy:
    """Train a policy whose longer answers are right more often, by the real sampler and the real term."""
    rng = np.random.default_rng(0)
    sampler = make_sampler()
    policy = LengthPolicy()
    reward = make_reward("correct", **terms)
    for step in range(40):
        groups = []
        for plan in sampler.propose(step, 16, MENU, rng):
            key, probabilities = policy.get_probabilities(plan.task.prompt)
            chosen = rng.choice(len(policy.LENGTHS), size=8, p=probabilities)
            episodes = []
            returns = []
            for length in policy.LENGTHS[chosen]:
                is_right = rng.random() < 1 - np.exp(-length / NEEDED[key[0]])
                episodes.append(episode(plan.task, int(length)))
                grade = RIGHT if is_right else WRONG
                returns.append(sum(term(episodes[-1], grade) for term in reward.terms.values()))
            policy.learn(key, chosen, np.array(returns) - np.mean(returns))
            groups.append(EpisodeGroup(plan.task, tuple(episodes)))
        sampler.observe(step, groups)
    return policy


@pytest.mark.slow
def test_a_policy_that_is_told_more_effort_spends_more_tokens_and_more_on_hard_tasks() -> None:
    policy = train({"correct": None, "within_effort": {}})
    hard = [policy.mean_length("hard", effort) for effort in (0.3, 0.7, 1.2, 1.7)]
    assert all(more > 1.15 * less for less, more in pairwise(hard)), hard
    easy = [policy.mean_length("easy", effort) for effort in (0.3, 0.7, 1.2, 1.7)]
    assert 1.5 * easy[0] < min(easy[1:]), easy
    # The prompts of both kinds state the same shares and no number of tokens.
    assert all(less < 0.75 * more for less, more in zip(easy[2:], hard[2:], strict=True)), (easy, hard)


def test_without_the_reward_term_the_told_effort_changes_nothing() -> None:
    policy = train({})
    for kind in NEEDED:
        low, high = (policy.mean_length(kind, effort) for effort in (0.3, 1.7))
        assert abs(low - high) < 0.2 * high, (low, high)


@pytest.mark.parametrize(("effort", "is_steady"), [(0.8, False), (1.0, True)])
def test_efforts_below_one_lower_the_mean_length_without_an_end(effort: float, is_steady: bool) -> None:
    """A policy that spends exactly its share lowers the mean, and with it what the same share allows."""
    sampler = make_sampler(between=[effort, effort], decay=0.0)
    tokens = 1000
    allowed = []
    for step in range(6):
        task = Task("t", "?", "1", "easy", metadata={"family": "easy"})
        sampler.observe(step, [EpisodeGroup(task, (episode(task, tokens),))])
        plans = {plan.task.metadata["family"]: plan for plan in propose(sampler, 20)}
        allowed.append(float(plans["easy"].task.metadata["allowed_tokens"]))
        tokens = int(allowed[-1])
    assert allowed == [1000.0] * 6 if is_steady else allowed[-1] < 0.4 * allowed[0]


def test_a_policy_is_told_any_effort_when_it_plays() -> None:
    task = Task("t", "Add {percent} and {task}.", "10", "own")
    read: list[str] = []

    def say(observation: Any) -> str:
        read.append(observation.brief.text)
        return "Answer: 10"

    for effort in (0.25, 0.333):
        strategy = make_strategy("effort", {"effort": effort}, "strategies.x")
        context = PlayContext(LIMITS, 0.8, EXPERT, HERMES)
        player = ScriptedPlayer(Says(say), lambda limits: Rules(limits, HERMES, WORDS), codec=None)
        ((record,),) = strategy.play([Instance(task, stream_seed("test", 0))], context, player)
        assert (record.answer, record.task.task_id) == ("10", "t")
    end = "% of the tokens that you usually spend on such a task."
    assert read == [f"{task.prompt}\nSpend at most {percent}{end}" for percent in (25, 33)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "{task}"}, r"form is '{task}'; expected a text with {task} and {percent}, each once"),
        ({"form": "{percent}{percent}{task}"}, "each once"),
        ({"form": "{percent}{task}{size}"}, r"form is .*: 'size'; expected {task} and {percent}, braces doubled"),
        ({"form": "{percent}{task"}, "expected '}' before end of string; expected {task} and {percent}"),
        ({"between": [0.9, 0.2]}, r"between is \[0.9, 0.2\]; expected two shares from 0.01, the smaller one first"),
        ({"between": [0.001, 0.2]}, "expected two shares from 0.01"),
        ({"between": [0.0, 0.2]}, r"between\[0\] is 0"),
    ],
)
def test_efforts_that_cannot_be_right_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task_sampler(PlugIn("effort", options), "rl")
    if "form" in options:
        with pytest.raises(ConfigError, match=words):
            make_strategy("effort", options, "strategies.x")


def test_a_form_sets_the_width_of_the_effort_and_can_be_taken_out_again() -> None:
    form = "{percent:03};{{}}{task}"
    prompts = [tell_effort(Task("t", "Add {percent}.", "1", "own"), effort, form).prompt for effort in (0.25, 1.75)]
    assert prompts == ["025;{}Add {percent}.", "175;{}Add {percent}."]
    assert {hide_effort(prompt, form) for prompt in prompts} == {"Add {percent}."}
    assert hide_effort("Add {percent}.", form) == "Add {percent}."


def test_no_demonstration_of_the_study_is_a_test_instance_without_its_effort() -> None:
    tasks = load_config(ROOT_FOLDER / "training" / "configs" / "methods" / "effort.yaml").tasks
    told = {name: spec for name, spec in tasks.items() if spec.name == "with_effort"}
    assert len(told) == 3
    for name, source in make_families(told, TRAIN).items():
        for seed in range(200):
            task = source.draw(np.random.default_rng(seed))
            untold = replace(task, prompt=hide_effort(task.prompt, told[name].options["form"]))
            assert untold.prompt != task.prompt
            assert part_of(untold, TEST_FRACTION) == TRAIN


def first_turn(task: Task) -> Observation:
    return observe(Kernel(task, Rules(LIMITS, HERMES, WORDS)), ROOT)


@pytest.mark.parametrize("style", [Style.SOLVE, Style.DELEGATE])
def test_demonstrations_state_an_effort_that_the_expert_does_not_see(style: Style) -> None:
    plain = RangeSum(min_length=11, max_length=24, pieces=(10,))
    told_source = TasksWithEffort(plain, (0.25, 1.75), FORM)
    efforts = []
    for seed in range(30):
        told, untold = (source.draw(np.random.default_rng(seed)) for source in (told_source, plain))
        percent, prompt = re.fullmatch(r"\[([0-9]+)\](.*)", told.prompt).groups()  # type: ignore[union-attr]
        efforts.append(int(percent))
        assert (prompt, told.answer, told.metadata) == (untold.prompt, untold.answer, untold.metadata)
        assert told.task_id != untold.task_id
        assert told_source.understands(first_turn(told))
        proposals = [
            source.propose(first_turn(task), np.random.default_rng(0), style)
            for source, task in ((told_source, told), (plain, untold))
        ]
        assert proposals[0] == proposals[1]
        if isinstance(proposals[0].action, Delegate):  # a clone is told its part alone
            part = Task("t", proposals[0].action.requests[0].objective, "", "range_sum")
            assert told_source.understands(first_turn(part))
    assert 25 <= min(efforts) < 60 < 140 < max(efforts) <= 175
    assert not told_source.understands(first_turn(Task("t", "[50]unknown", "", "own")))


def test_a_task_keeps_the_identity_that_its_source_gives_without_an_effort() -> None:
    class Named(RangeSum):
        def identity(self, task: Task) -> str:
            return f"identity of {task.prompt}"

    source = TasksWithEffort(Named())
    told = source.draw(np.random.default_rng(3))
    untold = RangeSum().draw(np.random.default_rng(3))
    assert identity_of(source, told) == f"identity of {untold.prompt}"
    plain = TasksWithEffort(RangeSum())
    assert identity_of(plain, plain.draw(np.random.default_rng(3))) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "{percent}"}, "each once"),
        ({"between": [0.9, 0.2]}, "expected two shares from 0.01, the smaller one first"),
    ],
)
def test_tasks_with_efforts_that_cannot_be_right_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_source("with_effort", **{"source": {"name": "range_sum"}, **options})
