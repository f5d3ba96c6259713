"""Forced rollouts without clones, and a return that is lower for delegation where those are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import agent, three_agents, turn
from test_job import config, play, rows

from selfcest_env.errors import ConfigError, RewardError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord, read_episodes
from selfcest_env.types import ROOT, Limits, Task, TurnKey
from selfcest_methods.adaptive_reward import AdaptiveReward, ForcedAlone
from selfcest_training.credit import Coma, CreditAssigner, Grpo, Rloo, assign, make_assigner
from selfcest_training.credit.testing import check_assigner
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.checks import filter_groups

LIMITS = Limits()
ALONE = Limits(max_depth=0)


def task(name: str) -> Task:
    return Task(name, f"{name}?", "1", "own")


def episode(name: str, right: float, *, delegates: bool = False, limits: Limits = LIMITS) -> EpisodeRecord:
    if delegates:
        return replace(three_agents(name, float(right)), task=task("t"), limits=limits)
    agents = (agent(ROOT, turn((1,), (2,))),)
    return EpisodeRecord(name, task("t"), limits, 0, agents, {"correct": float(right)})


def first_turns(scheme: CreditAssigner, group: EpisodeGroup) -> dict[str, Any]:
    """The advantage of each root's first turn."""
    credit = assign(scheme, group, {})
    return {one.episode_id: credit.advantage[TurnKey(one.episode_id, ROOT, 0)] for one in group.episodes}


# The filter


def group_of(name: str, limits: Limits = LIMITS, count: int = 2, prefix: str = "e") -> EpisodeGroup:
    episodes = (replace(episode(f"{prefix}{name}{k}", True, limits=limits), task=task(name)) for k in range(count))
    return EpisodeGroup(task(name), tuple(episodes))


def test_every_task_is_rolled_out_again_without_delegation_and_joined() -> None:
    tight = replace(LIMITS, total_tokens=90)
    free = [group_of("a"), group_of("b", tight), group_of("a", prefix="again")]
    group_filter = ForcedAlone(rollouts=3)
    first = filter_groups(group_filter, 0, free, 3, 1)
    asked = [PlannedGroup(task("a"), 3, ALONE), PlannedGroup(task("b"), 3, replace(tight, max_depth=0))]
    assert first.further_rollouts == (*asked, asked[0]), "under the budget of each group"
    forced = [group_of("b", replace(tight, max_depth=0), 3, "f"), *(group_of("a", ALONE, 3, p) for p in ("f", "g"))]
    second = filter_groups(group_filter, 0, [*free, *forced], 3, 2)
    assert not second.further_rollouts
    assert [[one.episode_id for one in group.episodes] for group in second.groups] == [
        ["ea0", "ea1", "fa0", "fa1", "fa2"],
        ["eb0", "eb1", "fb0", "fb1", "fb2"],
        ["againa0", "againa1", "ga0", "ga1", "ga2"],
    ]
    lost = filter_groups(group_filter, 0, [*free, *forced[1:]], 3, 2)
    assert [len(group.episodes) for group in lost.groups] == [5, 2, 5], "forced rollouts of b were lost"


def test_limits_without_delegation_have_nothing_to_force() -> None:
    with pytest.raises(ConfigError, match="group filter 'forced_alone': limits.max_depth is 0, so every rollout is al"):
        filter_groups(ForcedAlone(), 0, [group_of("a", ALONE)], 1, 1)


# The credit


def test_delegation_loses_the_power_of_the_share_that_is_right_alone() -> None:
    free = [episode("d", True, delegates=True), episode("w", False, delegates=True), episode("s", True)]
    forced = [episode(f"f{k}", k > 0, limits=ALONE) for k in range(4)]
    advantages = first_turns(AdaptiveReward(PlugIn("rloo")), EpisodeGroup(task("t"), (*free, *forced)))
    returns = {"d": 1 - 0.75**2, "w": 0.0, "s": 1.0, "f0": 0.0, "f1": 1.0, "f2": 1.0, "f3": 1.0}
    mean = sum(returns.values()) / 7
    assert advantages == pytest.approx({name: 7 / 6 * (value - mean) for name, value in returns.items()})
    weighted = [replace(one, weights={"correct": 3.0}) for one in (*free, *forced)]
    tripled = first_turns(AdaptiveReward(PlugIn("rloo")), EpisodeGroup(task("t"), tuple(weighted)))
    assert tripled == pytest.approx({name: 3 * value for name, value in advantages.items()})
    credit = assign(AdaptiveReward(alpha=1.0), EpisodeGroup(task("t"), (*free, *forced)), {})
    assert credit.diagnostics == {"alone_rate": 0.75}


def test_the_figure_of_the_paper() -> None:
    """Figure 3: two forced rollouts of each mode and a free one, whose 1 is worth 0.8 if it is not instant."""
    forced = [episode(f"f{k}", right, limits=ALONE) for k, right in enumerate((0, 1))]
    # Rollouts that were forced to another mode have no counterpart here; wrong ones have the same returns as free ones.
    others = [episode(f"o{k}", right) for k, right in enumerate((1, 0, 0, 0))]
    free = [episode("agentic", 1, delegates=True), episode("instant", 1), episode("reasoning", 1, delegates=True)]
    alpha = np.log(0.2) / np.log(0.5)  # a half is right, and 1 becomes 0.8
    scheme = AdaptiveReward(PlugIn("grpo", {"std_floor": 0.0, "epsilon": 0.0}), alpha=float(alpha))
    advantages = first_turns(scheme, EpisodeGroup(task("t"), (*others, *forced, *free)))
    population = np.sqrt(9 / 8)  # the figure divides by the std of the population
    for name, advantage in {"o0": 1.06, "o1": -1.10, "f1": 1.06, "agentic": 0.62, "instant": 1.06}.items():
        assert population * advantages[name] == pytest.approx(advantage, abs=0.006)


def test_without_forced_rollouts_it_is_the_inner_scheme() -> None:
    group = EpisodeGroup(task("t"), (episode("a", True, delegates=True), episode("b", False)))
    assert assign(AdaptiveReward(), group, {}) == assign(Grpo(), group, {})
    for inner in (None, PlugIn("coma")):
        check_assigner(AdaptiveReward(inner, term="score"), seeds=10)


def test_replays_are_judged_as_their_episode() -> None:
    """A clone is no reason for the decision of its root, so its counterfactual has the same price."""
    calls = episode("d", 1.0, delegates=True)
    group = EpisodeGroup(calls.task, (calls, episode("s", True), episode("f", True, limits=ALONE)))
    scheme = AdaptiveReward(PlugIn("coma"))
    replays = scheme.replays(group)
    records = {replay: replace(calls, episode_id=str(replay)) for replay in replays}
    assert list(replays) == Coma().replays(group)
    credit = assign(scheme, group, records)
    clones = [one.agent_id for one in calls.agents[1:]]
    assert [credit.advantage[TurnKey("d", clone, 0)] for clone in clones] == [0.0, 0.0]
    assert credit.advantage[TurnKey("d", ROOT, 0)] == -1.0, "alone is right, so the call is worth nothing"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"alpha": 0.0}, "alpha is 0"), ({"scheme": {"name": "gae"}}, "scheme is 'gae', which learns")],
)
def test_options_that_cannot_be_right_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_assigner("adaptive_reward", options, where="credit.options")


def test_a_term_that_the_reward_lacks_is_named() -> None:
    group = EpisodeGroup(task("t"), (episode("a", True), episode("f", True, limits=ALONE)))
    with pytest.raises(RewardError, match="term is 'right', but the reward has no such term"):
        assign(AdaptiveReward(term="right"), group, {})


# What is learned

RIGHT_ALONE = {"small": 0.9, "large": 0.05}
RIGHT_DELEGATED = 0.95


def learn(scheme: CreditAssigner, *, steps: int = 150) -> dict[str, float]:
    """Train the probability of delegation for two sizes of tasks by the real filter and scheme; return it."""
    rng = np.random.default_rng(0)
    group_filter = ForcedAlone(rollouts=4)
    logits = dict.fromkeys(RIGHT_ALONE, 0.0)

    def roll_out(size: str, count: int, limits: Limits, name: str) -> EpisodeGroup:
        episodes = []
        for k in range(count):
            delegates = limits.max_depth != 0 and rng.random() < 1 / (1 + np.exp(-logits[size]))
            right = rng.random() < (RIGHT_DELEGATED if delegates else RIGHT_ALONE[size])
            record = episode(f"{name}{size}{k}", right, delegates=delegates, limits=limits)
            episodes.append(replace(record, task=task(size)))
        return EpisodeGroup(task(size), tuple(episodes))

    for step in range(steps):
        groups = [roll_out(size, 8, LIMITS, "free") for size in RIGHT_ALONE]
        plans = filter_groups(group_filter, step, groups, 2, 1).further_rollouts
        assert all(plan.limits is not None for plan in plans)
        groups += [roll_out(plan.task.task_id, plan.num_rollouts, plan.limits or LIMITS, "forced") for plan in plans]
        for group in filter_groups(group_filter, step, groups, 2, 2).groups:
            size = group.task.task_id
            probability = 1 / (1 + np.exp(-logits[size]))
            advantages = first_turns(scheme, group)
            for record in group.episodes:
                if record.limits == LIMITS:
                    choice = float(len(record.agents) > 1)
                    logits[size] += 0.1 * advantages[record.episode_id] * (choice - probability)
    return {size: float(1 / (1 + np.exp(-logit))) for size, logit in logits.items()}


def test_the_policy_stops_delegating_what_it_solves_alone_and_nothing_else() -> None:
    learned = learn(AdaptiveReward(PlugIn("rloo")))
    assert learned["small"] < 0.1, learned
    assert learned["large"] > 0.9, learned


def test_by_accuracy_only_it_delegates_both() -> None:
    learned = learn(Rloo())
    assert learned["small"] > 0.5, learned
    assert learned["large"] > 0.9, learned


@pytest.mark.slow
def test_a_trained_model_stops_calling_a_clone_that_it_does_not_need(tmp_path: Path) -> None:
    """Every answer is right, alone and through a clone, and no token has a price."""
    changes = {
        "variants__delegating__rl__steps": 8,
        "variants__delegating__rl__group_filter": {"name": "forced_alone", "options": {"rollouts": 4}},
        "variants__delegating__rl__credit": {"name": "adaptive_reward", "options": {"scheme": {"name": "rloo"}}},
    }
    job = play(config(tmp_path, log_groups=9, **changes))
    assert {row["gate/rounds"] for row in rows(job)} == {2}
    assert rows(job)[0]["credit/alone_rate"] > 0.5
    clones: list[list[int]] = [[] for _ in range(8)]
    for record in read_episodes(job.folder / "episodes.jsonl"):
        if record.limits.max_depth:
            clones[int(record.episode_id[1])].append(record.cost.clones)
        else:
            assert record.cost.clones == 0
    shares = [float(np.mean(of_step)) for of_step in clones]
    assert shares[0] > 0.25, shares
    assert shares[-1] < 0.05, shares
