"""The stages of a step: what is proposed, kept, weighed and credited, and that a run with a memory resumes exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from records import group, three_agents
from remembering import RunningMean, SparesTheEasy
from test_job import Crash, config, crash_and_resume, play, play_from, rows, warm, weights
from test_outages import LIMITS, PLANS, player

from selfcest_env.errors import ConfigError, CreditError, PlugInError, RewardError, TrainingError
from selfcest_env.plugin import PlugIn, Registry, Stateful
from selfcest_env.record import EpisodeGroup, EpisodeRecord, from_json, read_episodes, to_json
from selfcest_env.reward import make_reward
from selfcest_training.config import RLConfig, RunConfig
from selfcest_training.credit import SCHEMES, Credit, CreditAssigner, Rloo, assign_step, make_assigner, overrides
from selfcest_training.credit.registry import check_scheme
from selfcest_training.learner.batch import build_samples, split_into_mini_batches
from selfcest_training.learner.options import Denominator
from selfcest_training.plain_state import extract_tensors, insert_tensors
from selfcest_training.run.checkpoint import list_checkpoints, read_trainer_state
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages import checks
from selfcest_training.stages.base import FilterResult, PlannedGroup, Stages, TaskMenu
from selfcest_training.stages.group_filters import KeepAll, KeepVaried
from selfcest_training.stages.registry import (
    GROUP_FILTERS,
    REWARD_SCHEDULES,
    TASK_SAMPLERS,
    make_group_filter,
    make_reward_schedule,
    make_stages,
    make_task_sampler,
)
from selfcest_training.stages.schedules import Constant, Linear
from selfcest_training.trainer import Trainer

__all__ = ["warm"]  # a fixture

RL = "variants__delegating__rl"
MEMORY = {
    f"{RL}__task_sampler": {"name": "remembering:SparesTheEasy"},
    f"{RL}__group_filter": {"name": "remembering:AsksOnceMore"},
    f"{RL}__reward_schedule": {"name": "remembering:ByMeanTokens"},
    f"{RL}__credit": {"name": "remembering:RunningMean"},
}
COPY = {"name": "transformers", "options": {"dtype": "float32"}}


def pair(name: str, first: float, second: float) -> EpisodeGroup:
    return group(three_agents(f"{name}.e0", first), three_agents(f"{name}.e1", second))


# Group filters


def test_all_admits_everything_and_asks_for_nothing() -> None:
    groups = [pair("g0", 1.0, 1.0), pair("g1", 1.0, 0.0)]
    assert KeepAll().filter(0, groups, num_groups=2, rounds=1) == FilterResult(tuple(groups))


def test_varied_drops_equal_groups_and_refills_up_to_its_bound() -> None:
    equal, varied, close = pair("g0", 1.0, 1.0), pair("g1", 1.0, 0.0), pair("g2", 0.5, 0.51)
    group_filter = KeepVaried(max_rounds=2)
    first = group_filter.filter(0, [equal, varied, equal], num_groups=3, rounds=1)
    assert first == FilterResult((varied,), num_new_tasks=2)
    assert group_filter.filter(0, [equal, varied, equal, close, equal], num_groups=3, rounds=2) == FilterResult(
        (varied, close)
    )
    assert group_filter.filter(0, [varied, close, varied], num_groups=2, rounds=2) == FilterResult((varied, close)), (
        "no more than planned"
    )
    assert KeepVaried().filter(0, [pair("g3", 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)], num_groups=1, rounds=1).groups == ()
    assert KeepVaried(tolerance=0.02).filter(0, [varied, close], num_groups=1, rounds=1) == FilterResult((varied,))


@pytest.mark.parametrize("options", [{"tolerance": -1.0}, {"tolerance": float("nan")}, {"max_rounds": 0}])
def test_a_gate_of_wrong_options_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"rl.group_filter.options.*{next(iter(options))} is"):
        make_group_filter(PlugIn("varied", options), "rl.group_filter")


def test_a_gate_may_only_choose() -> None:
    mine, other = pair("g0", 1.0, 0.0), pair("g1", 1.0, 0.0)
    both = group(*mine.episodes, other.episodes[1])
    for kept in ((other,), (both,), (group(mine.episodes[1]), other)):
        admission = FilterResult(kept)
        assert checks.filter_groups(Odd(filter=admission), 3, [mine, other], 1, 1) is admission
    for kept in ((pair("g0", 1.0, 0.0),), (mine, mine), (mine, both)):
        with pytest.raises(
            TrainingError, match="group filter Odd, step 3: kept episode g.*, which it was not given, or kept"
        ):
            checks.filter_groups(Odd(filter=FilterResult(kept)), 3, [mine, other], 1, 1)


# Mini-batches of rule 8


def test_twenty_three_groups_in_two_are_two_steps_of_the_planned_denominator() -> None:
    """24 groups of 2 were planned, one was dropped: each half stands for 24 episodes of 10 tokens."""
    groups = [pair(f"g{i}", 1.0, 0.0) for i in range(23)]
    credits = [Rloo().assign(each, {}) for each in groups]
    options = {"denominator": Denominator.CONSTANT, "constant": 10.0}
    halves = split_into_mini_batches(groups, credits, 2, planned_episodes=48, **options)
    assert [len(samples) for samples in halves] == [11 * 2 * 3, 12 * 2 * 3], "three agents an episode"
    assert {sample.weight for samples in halves for sample in samples} == {1 / (24 * 10)}


def test_a_whole_step_is_cut_as_if_nothing_had_been_planned() -> None:
    groups = [pair(f"g{i}", 1.0, 0.0) for i in range(4)]
    credits = [Rloo().assign(each, {}) for each in groups]
    options = {"denominator": Denominator.EPISODE_MEAN, "constant": 1.0}
    (first, _) = split_into_mini_batches(groups, credits, 2, planned_episodes=8, **options)
    alone = build_samples(groups[:2], credits[:2], **options)
    assert [(sample.episode_id, sample.weight) for sample in first] == [(s.episode_id, s.weight) for s in alone]


def test_fewer_groups_than_mini_batches_leave_some_empty() -> None:
    groups = [pair("g0", 1.0, 0.0)]
    options = {"denominator": Denominator.CONSTANT, "constant": 1.0, "planned_episodes": 6}
    sizes = [len(samples) for samples in split_into_mini_batches(groups, [Rloo().assign(groups[0], {})], 3, **options)]
    assert sizes == [0, 0, 6]


# Reward schedules


def test_linear_by_hand() -> None:
    schedule = Linear(start={"a": 2.0, "b": 0.0}, end={"a": 0.0, "c": 3.0}, steps=4)
    assert schedule.weights(0) == {"a": 2.0, "b": 0.0, "c": 1.0}
    assert schedule.weights(1) == {"a": 1.5, "b": 0.25, "c": 1.5}
    assert schedule.weights(4) == schedule.weights(9) == {"a": 0.0, "b": 1.0, "c": 3.0}
    assert Constant().weights(7) == {}


def test_a_return_is_the_weighted_sum_of_unweighted_terms() -> None:
    record = three_agents("e", 1.0)
    terms = {"correct": 1.0, "token_cost": -0.3}
    scored = replace(record, reward_terms=terms, weights={"token_cost": 2.0})
    assert scored.team_return == 1.0 - 0.6
    assert scored.reward_terms == terms
    assert from_json(json.loads(json.dumps(to_json(scored)))) == scored


def test_a_weight_of_no_term_is_an_error() -> None:
    with pytest.raises(RewardError, match="'token_costs', which is no term .*Did you mean 'token_cost'"):
        make_reward("default").score(three_agents("e", 1.0), {"token_costs": 1.0})
    with pytest.raises(RewardError, match="'correct'.*expected a finite number"):
        make_reward("default").score(three_agents("e", 1.0), {"correct": float("inf")})


def test_a_schedule_of_an_unknown_term_stops_before_any_work(tmp_path: Path) -> None:
    schedule = {"name": "constant", "options": {"terms": {"clone_cost": 0.0}}}
    with pytest.raises(RewardError, match="'clone_cost', which is no term"):
        Job(config(tmp_path, **{f"{RL}__reward_schedule": schedule}), JobId("delegating", 0), lambda *_: None)


# Plug-ins


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (make_task_sampler, "task sampler"),
        (make_group_filter, "group filter"),
        (make_reward_schedule, "reward schedule"),
    ],
)
def test_what_is_no_stage_is_refused_by_name(make: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown {what} 'other'"):
        make(PlugIn("other"), "rl")
    with pytest.raises(PlugInError, match=f"{what} 'trivial:Choice': Choice lacks "):
        make(PlugIn("trivial:Choice"), "rl")


def test_a_scheme_of_whole_steps_gives_one_credit_a_group() -> None:
    class Short(Rloo):
        def assign_step(self, groups: Any, replayed: Any, internals: Any) -> list[Credit]:
            return []

    with pytest.raises(CreditError, match="'rloo' returned 0 credits for 1 groups"):
        assign_step(Short(), [pair("g0", 1.0, 0.0)], [{}])


def test_retries_that_a_group_filter_chose_by_outcomes_are_shown_to_rewards_alone() -> None:
    class Watches:
        def __init__(self) -> None:
            self.seen: list[list[str]] = []

        def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: Any) -> list[PlannedGroup]:
            return list(PLANS[:2])

        def weights(self, step: int) -> dict[str, float]:
            return {}

        def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
            self.seen.append([group.episodes[0].episode_id for group in groups])

    class Again:
        def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
            again = (PlannedGroup(groups[0].task, 2),) if rounds < 3 else ()
            return FilterResult(tuple(groups), num_new_tasks=int(rounds == 1), further_rollouts=again)

    tasks, rewards = Watches(), Watches()
    stages = Stages(tasks, Again(), rewards, Rloo())
    rl = RLConfig(
        steps=1, tasks_per_step=1, temperature=1.0, loss_denominator_tokens=1.0, max_retries=0, max_failed_fraction=0.0
    )
    menu = TaskMenu({}, {}, 4, LIMITS)
    trainer = Trainer(player(), None, None, menu, stages, rl, None, seed=0)  # type: ignore[arg-type]
    produced = trainer.produce(0)
    names = [f"s0.g{i}.e0" for i in range(6)]
    assert [group.episodes[0].episode_id for group in produced.groups] == names
    assert tasks.seen == [names[:2], names[2:4]], "the second round has two new ones and a retry, the third a retry"
    assert rewards.seen == [names[:2], names[2:5], names[5:]]
    assert produced.planned_episodes == sum(plan.num_rollouts for plan in PLANS[:2])


# In a run


def run(output: Path, **changes: Any) -> RunConfig:
    return config(output, **{f"{RL}__steps": 6, f"{RL}__minibatches": 2, "log_groups": 9, **MEMORY, **changes})


def episodes(job: Job) -> list[EpisodeRecord]:
    return list(read_episodes(job.folder / "episodes.jsonl"))


@pytest.mark.slow
def test_every_stage_has_its_say(warm: Job, tmp_path: Path) -> None:
    job = play_from(warm, run(tmp_path))
    found = rows(job)
    assert [row["gate/rounds"] for row in found] == [1, 2, 1, 2, 1, 2]
    assert [row["gate/dropped_groups"] for row in found] == [1] * 6
    learned = episodes(job)
    sizes = {name: sum(e.episode_id.startswith(f"{name}.") for e in learned) for name in ("s0.g1", "s1.g4")}
    assert sizes["s0.g1"] == 8 >= sizes["s1.g4"] >= 2
    first = [e for e in learned if e.episode_id.startswith("s0.")]
    assert {e.weights["token_cost"] for e in first} == {1.0}
    later = {e.episode_id.partition(".")[0]: e.weights["token_cost"] for e in learned}
    assert len(set(later.values())) == 6, "every step has its own price"
    assert len({e.seed for e in learned}) == len(learned)
    sampled = found[-1]["sampled_tokens"] - sum(e.cost.generated_tokens for e in learned)
    assert sampled == sum(row["gate/dropped_tokens"] for row in found), "dropped groups are paid for"


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_a_killed_run_with_a_memory_resumes_to_the_same_end(tmp_path: Path, lag: int) -> None:
    changes = {f"{RL}__max_staleness": lag, "sampler": COPY} if lag else {}
    whole, spec = play(run(tmp_path / "whole", **changes)), run(tmp_path / "killed", **changes)

    def crash(stage: str, share: float, line: str) -> None:
        if stage == "RL" and share >= 0.5:
            raise Crash

    with pytest.raises(Crash):
        Job(spec, JobId("delegating", 0), crash).run(lambda: None)
    memory = read_trainer_state(list_checkpoints(spec.folder / "delegating" / "seed0" / "checkpoints")[-1])
    assert set(memory["stages"]) == {"tasks", "gate", "rewards", "credit"}
    assert len(memory["waiting"]) == lag
    resumed = play(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert episodes(resumed) == episodes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_turns_of_replays_train_and_a_killed_run_resumes_to_the_same_end(tmp_path: Path, lag: int) -> None:
    """In tree rows, in two mini-batches, with a term that heeds their weight."""
    changes = {
        f"{RL}__steps": 4,
        f"{RL}__minibatches": 2,
        f"{RL}__credit": {"name": "branches", "options": {"samples": 2, "max_share": 0.8}},
        f"{RL}__loss": {"name": "clipped", "terms": {"kl": {"weight": 0.05}}},
        f"{RL}__max_staleness": lag,
        "log_groups": 9,
        "rows": "tree",
    } | ({"sampler": COPY} if lag else {})
    whole, spec = play(config(tmp_path / "whole", **changes)), config(tmp_path / "killed", **changes)
    resumed = crash_and_resume(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert episodes(resumed) == episodes(whole)
    first = [record for record in episodes(whole) if record.episode_id.startswith("s0.")]
    replays = [record for record in first if "=" in record.episode_id]
    contexts = sum(len(record.agents) for record in first if "=" not in record.episode_id)
    assert replays
    assert rows(whole)[0]["rows"] == contexts + len(replays), "of each replay its one clone trains"


@pytest.mark.slow
def test_a_memory_that_no_checkpoint_can_hold_says_so(
    warm: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remembering.RunningMean.state_dict", lambda self: {"model": object()})
    with pytest.raises(TrainingError, match=r"holds object at /stages/credit/model; expected dicts"):
        play_from(warm, run(tmp_path))


@pytest.mark.slow
def test_a_memory_of_other_stages_is_refused(warm: Job, tmp_path: Path) -> None:
    play_from(warm, run(tmp_path))
    with pytest.raises(TrainingError, match=r"states of the stages \['credit', 'gate', 'rewards', 'tasks'\]; expected"):
        play(run(tmp_path, **{f"{RL}__group_filter": {"name": "all"}, f"{RL}__steps": 8}))


# Stages and schemes that are not what they seem


class Odd:
    """Every stage at once; what it returns is set from outside."""

    def __init__(self, **returns: Any) -> None:
        self.returns = returns

    def propose(self, *_: Any) -> Any:
        return self.returns["propose"]

    def weights(self, *_: Any) -> Any:
        return self.returns["weights"]

    def filter(self, *_: Any) -> Any:
        return self.returns["filter"]

    def observe(self, *_: Any) -> None:
        raise IndexError("far")


def test_a_stage_fails_by_name() -> None:
    groups = [pair("g0", 1.0, 0.0)]
    plan = PlannedGroup(groups[0].task, 0)
    for planned in (5, [], [plan], [groups[0].task]):
        with pytest.raises(TrainingError, match="task sampler Odd, step 3: (raised TypeError|proposed .* expected)"):
            checks.propose(Odd(propose=planned), 3, 4, None, None)  # type: ignore[arg-type]
    for admission in (None, FilterResult(tuple(groups), num_new_tasks=-1)):
        with pytest.raises(
            TrainingError, match="group filter Odd, step 3: returned .*; expected a FilterResult with num_new_tasks"
        ):
            checks.filter_groups(Odd(filter=admission), 3, groups, 1, 1)
    with pytest.raises(TrainingError, match=r"step 3: further_rollouts is \(.*; expected PlannedGroups"):
        checks.filter_groups(Odd(filter=FilterResult((), further_rollouts=(plan,))), 3, groups, 1, 1)
    further = FilterResult((), further_rollouts=(replace(plan, num_rollouts=1),))
    for admission in (FilterResult((), num_new_tasks=1), further):
        with pytest.raises(TrainingError, match="group filter Odd, step 3: asks for more after 1000 rounds"):
            checks.filter_groups(Odd(filter=admission), 3, groups, 1, checks.MAX_ROUNDS)
    with pytest.raises(TrainingError, match="reward schedule Odd, step 3: weights are None; expected a mapping"):
        checks.get_reward_weights(Odd(weights=None), 3)
    with pytest.raises(TrainingError, match="Odd.observe, step 3: raised IndexError: far"):
        checks.observe(Odd(), 3, groups)  # type: ignore[arg-type]


def test_half_a_memory_is_refused() -> None:
    with pytest.raises(PlugInError, match="FitsAlone has fit and lacks state_dict, load_state_dict"):
        make_assigner("remembering:FitsAlone", {}, where="")
    with pytest.raises(
        PlugInError, match="group filter 'remembering:Forgets': Forgets has state_dict and lacks load_state"
    ):
        make_group_filter(PlugIn("remembering:Forgets"), "rl.group_filter")


def test_a_frozen_dataclass_that_remembers_is_refused() -> None:
    with pytest.raises(
        PlugInError, match="'remembering:Melts': Melts is a frozen dataclass and has state_dict; expect"
    ):
        make_group_filter(PlugIn("remembering:Melts"), "rl.group_filter")
    scheme = dataclass(frozen=True)(type("Melts", (RunningMean,), {"name": "melts"}))
    with pytest.raises(PlugInError, match="Melts is a frozen dataclass and has state_dict"):
        check_scheme(scheme, "credit scheme 'melts'")
    check_scheme(RunningMean, "credit scheme 'running_mean'")


@pytest.mark.parametrize("registry", [TASK_SAMPLERS, GROUP_FILTERS, REWARD_SCHEDULES, SCHEMES])
def test_no_stage_that_is_installed_hides_what_it_remembers(registry: Registry[object]) -> None:
    """Options are frozen, and what changes is no cached property of them."""
    for name in registry:
        stage = registry.load(name)
        assert not [base for base in stage.__mro__ for item in vars(base).values() if isinstance(item, cached_property)]
        remembers = (
            overrides(stage, "state_dict") if issubclass(stage, CreditAssigner) else hasattr(stage, "state_dict")
        )
        assert issubclass(stage, Stateful) == remembers, name


def test_options_of_a_stage_are_read_like_those_of_a_dataclass() -> None:
    sampler = make_task_sampler(PlugIn("remembering:SparesTheEasy", {"least": 3}), "rl.task_sampler")
    assert isinstance(sampler, SparesTheEasy)
    assert sampler.options == SparesTheEasy.Options(least=3) == SparesTheEasy(3).options
    with pytest.raises(FrozenInstanceError):
        sampler.options.least = 4  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"^rl.task_sampler.options.least is 0; expected a whole number >= 1"):
        make_task_sampler(PlugIn("remembering:SparesTheEasy", {"least": 0}), "rl.task_sampler")
    with pytest.raises(ConfigError, match=r"options.leest is unknown. Did you mean 'least'\? SparesTheEasy has least"):
        make_task_sampler(PlugIn("remembering:SparesTheEasy", {"leest": 3}), "rl.task_sampler")
    with pytest.raises(ConfigError, match=r"^SparesTheEasy.least is 0"):
        SparesTheEasy(least=0)
    with pytest.raises(TypeError, match=r"Thaws.Options is .*; expected a frozen dataclass"):
        type("Thaws", (Stateful,), {"Options": dataclass(type("Options", (), {}))})


def test_tensors_of_equal_paths_are_kept_apart(tmp_path: Path) -> None:
    one, two = torch.ones(1), torch.zeros(1)
    tensors: dict[str, torch.Tensor] = {}
    plain = extract_tensors({"a/b": one, "a": {"b": two}}, "", tensors)
    assert insert_tensors(json.loads(json.dumps(plain)), tensors) == {"a/b": one, "a": {"b": two}}
    with pytest.raises(TrainingError, match="holds a mapping with the keys"):
        extract_tensors({"__tensor__": "0"}, "", tensors)


@pytest.mark.slow
def test_empty_mini_batches_take_no_part_in_metrics_and_agreement(warm: Job, tmp_path: Path) -> None:
    """The group filter keeps one group of four for two mini-batches: the first is empty, the second is checked."""
    group_filter = {"name": "remembering:KeepsOne"}
    changes = {f"{RL}__steps": 1, f"{RL}__minibatches": 2, f"{RL}__group_filter": group_filter}
    job = play_from(warm, config(tmp_path, **changes))
    (row,) = rows(job)
    assert row["rows"] > 0
    assert 0 < row["logprob_gap"] < 1e-4, "of the one that trained"


@pytest.mark.slow
def test_a_term_cannot_hide_a_metric(warm: Job, tmp_path: Path) -> None:
    terms = {"return": {"weight": 0.01, "name": "entropy"}}
    (row,) = rows(play_from(warm, config(tmp_path, **{f"{RL}__steps": 1, f"{RL}__loss": {"terms": terms}})))
    assert row["return"] <= 1 < row["loss/return"] + 1


def test_the_constant_of_a_scheme_that_weighs_tokens_is_the_loss_s(tmp_path: Path) -> None:
    rl = replace(config(tmp_path).variants["delegating"].rl, loss_denominator_tokens=140.0)
    scheme, right = {"name": "wideseek"}, {"name": "wideseek", "options": {"loss_denominator_tokens": 140.0}}
    for wrap in (
        lambda inside: PlugIn(**inside),
        lambda inside: PlugIn("gated", {"scheme": inside}),
        lambda inside: PlugIn("per_role", {"clones": inside}),
    ):
        with pytest.raises(
            ConfigError, match=r"rl\.credit\.options: loss_denominator_tokens of wideseek is 100 and .* loss 140;"
        ):
            make_stages(replace(rl, credit=wrap(scheme)))
        assert make_stages(replace(rl, credit=wrap(right))).credit.name == wrap(right).name
        by_mean = replace(rl, credit=wrap(scheme), denominator=Denominator.EPISODE_MEAN)
        with pytest.raises(ConfigError, match=r"rl\.credit\.options: .*; expected the denominator 'constant'"):
            make_stages(by_mean)
