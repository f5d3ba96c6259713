"""A training run's evaluation: a study with one budget, the run's limits, of every variant before and after RL.

Each job plays its own part of it with its own weights, and the results of all jobs are read as one study.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

from selfcest_agents.language import language_of
from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.reward import make_reward
from selfcest_env.tasks import Style
from selfcest_eval.play.config import StrategySpec, StudyConfig
from selfcest_eval.play.costs import check_costs
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.policies import MINIMAL_LIMITS, SEED
from selfcest_eval.play.results import Result, read_results, read_unplayable
from selfcest_eval.play.store import Store
from selfcest_eval.play.strategies import PlayContext, make_strategy, quote_name
from selfcest_eval.play.study import Study
from selfcest_eval.play.unplayable import describe_unplayable, drop_unplayable
from selfcest_eval.report.settings import check_result_keys
from selfcest_training.config import RunConfig
from selfcest_training.run.evaluator import EvaluationStage

AFTER_RL = ", after RL"
FORCED = ("always_delegates", "never_delegates")


@dataclass(frozen=True)
class EvaluatedPolicy:
    """One strategy of a run's study: a variant at a stage and a temperature, by its own choice or a forced one."""

    variant: str
    stage: EvaluationStage
    temperature: float
    strategy: str = "plain"

    def model(self, config: RunConfig) -> Path:
        """Return the folder of the weights, with a placeholder for the seed.

        A variant without RL has its final weights once its warm start has ended.
        """
        before = self.stage is EvaluationStage.BEFORE or not config.variants[self.variant].rl.steps
        return _folder(config, self.variant, SEED) / ("warmstart_model" if before else "model")

    def label(self, config: RunConfig) -> str:
        """Return the name of the strategy in the study."""
        label = self.variant
        if config.variants[self.variant].rl.steps:
            label += AFTER_RL if self.stage is EvaluationStage.AFTER else ", before RL"
        if self.temperature:
            label += f", T {self.temperature:g}"
        if self.strategy in FORCED:
            label += f", {self.strategy.replace('_', ' ')}"
        return label


def list_evaluated_policies(config: RunConfig) -> list[EvaluatedPolicy]:
    """Return all evaluated policies of a run, in the order of the table.

    Before RL, and with forced choices, a variant is evaluated only at the first temperature.
    """
    first, *further = config.evaluation.temperatures
    parts = []
    for variant, spec in config.variants.items():
        strategies = ("plain", *FORCED) if spec.forced else ("plain",)
        if spec.rl.steps:
            parts += [EvaluatedPolicy(variant, EvaluationStage.BEFORE, first, strategy) for strategy in strategies]
        parts += [EvaluatedPolicy(variant, EvaluationStage.AFTER, first, strategy) for strategy in strategies]
        parts += [EvaluatedPolicy(variant, EvaluationStage.AFTER, temperature) for temperature in further]
    return parts


def make_run_study(config: RunConfig, parts: Sequence[EvaluatedPolicy] | None = None) -> StudyConfig:
    """Return a run's evaluation, or a part of it, as a study. Its subject is the last variant that can delegate."""
    parts = list_evaluated_policies(config) if parts is None else parts
    evaluation = config.evaluation
    delegating = [part for part in parts if config.limits_of(part.variant).delegation and part.strategy == "plain"]
    subjects = [part for part in delegating if part.temperature == evaluation.temperatures[0]] or parts
    return StudyConfig(
        name=config.name,
        output=config.output,
        tasks=config.tasks,
        eval_sets=evaluation.eval_sets,
        strategies={
            part.label(config): StrategySpec(
                part.strategy,
                policy=PlugIn("model", {"folder": str(part.model(config))}),
                temperature=part.temperature,
                limits=config.variants[part.variant].limits,
                families=config.variants[part.variant].evaluated_on,
                styles=get_shown_styles(config, part.variant) if part.strategy not in FORCED else (),
            )
            for part in parts
        },
        subject=subjects[-1].label(config),
        limits=config.limits,
        reward=config.reward,
        costs=evaluation.costs,
        episodes=evaluation.episodes,
        seeds=config.seeds,
        task_seed=evaluation.seed,
        held_out=True,
        threads=config.threads,
    )


def get_shown_styles(config: RunConfig, variant: str) -> tuple[Style, ...]:
    """Return the styles of a variant's perfect players, as far as its limits allow them.

    They are the styles that its warm start shows, or without a warm start all of them.
    """
    limits = config.limits_of(variant)
    phases = config.variants[variant].warmstart.phases
    shown: set[Style] = set()
    for demonstrations in chain.from_iterable(phase.mix.values() for phase in phases):
        if demonstrations.share > 0:
            shown.update(style for style, weight in demonstrations.styles.items() if weight > 0)
    is_allowed = {Style.DELEGATE: limits.delegation, Style.READ: limits.reading, Style.SOLVE: True}
    return tuple(style for style in Style if is_allowed[style] and (style in shown or not phases))


def check_evaluation(config: RunConfig) -> None:
    """Check the eval sets, costs and strategies before any work, rather than after the warm start.

    Raises:
        SelfcestError: an eval set cannot be played, the reward refuses its tasks, a cost cannot be computed, or a
            strategy cannot play an eval set.
    """
    if not config.evaluation.eval_sets:
        return
    study = make_run_study(config)
    try:
        check_costs(study.costs)
    except ConfigError as error:
        raise ConfigError(f"evaluation.{error}") from error
    reward = make_reward(config.reward.name, **config.reward.options)
    protocol = language_of(config.model).rules(MINIMAL_LIMITS).protocol
    for eval_set in study.eval_sets:
        source = source_of(study, eval_set)
        tasks = instances_of(study, eval_set, source)
        reward.check(tasks, f"eval set {eval_set.family} {eval_set.size}")
        for label, spec in study.strategies.items():
            if eval_set not in study.eval_sets_of(label):
                continue
            limits = study.limits_at(None, label)
            context = PlayContext(limits, study.temperature_of(label), source, protocol)
            try:
                strategy = make_strategy(spec.name, spec.options, label)
                strategy.check(context)
                strategy.check_tasks(tasks, source)
            except ConfigError as error:
                raise ConfigError(
                    f"evaluation of {label}, eval set {eval_set.family} {eval_set.size}: {error}"
                ) from error


def evaluate_job(
    config: RunConfig,
    variant: str,
    seed: int,
    stage: EvaluationStage,
    player: Player,
    report: Callable[[float, str], None],
) -> None:
    """Play the part of the study that belongs to one job, with the weights of that job."""
    parts = [part for part in list_evaluated_policies(config) if (part.variant, part.stage) == (variant, stage)]
    if not parts or not config.evaluation.eval_sets:
        return
    study = Study(replace(make_run_study(config, parts), seeds=(seed,)))
    done = 0

    def on_played(count: int, line: str) -> None:
        nonlocal done
        done += count
        report(done / study.size, line)

    study.play(Store(_folder(config, variant, seed) / stage), on_played, player)


def read_run_results(
    config: RunConfig, on_result: Callable[[Path, Result], None] | None = None
) -> tuple[list[Result], list[str]]:
    """Return the results of all jobs so far, of the seeds that every strategy has, and notes on missing ones.

    Args:
        config: of the run.
        on_result: called with the file of every result and the result, which then has its episodes. It is not called
            for perfect players.

    Raises:
        ConfigError: there are no results, or an earlier version wrote them.
    """
    results_by_part: dict[EvaluatedPolicy, dict[int, list[Result]]] = {}
    parts_by_folder: dict[tuple[str, EvaluationStage], list[EvaluatedPolicy]] = {}
    for part in list_evaluated_policies(config):
        results_by_part[part] = {}
        parts_by_folder.setdefault((part.variant, part.stage), []).append(part)
    study = make_run_study(config)
    for ((variant, stage), parts), seed in product(parts_by_folder.items(), config.seeds):
        path = _results_file(config, variant, stage, seed)
        if path.exists():
            # The choices of a variant are read off its episodes.
            results_of_file = read_file(path, config.variants[variant].forced, on_result)
            for part in parts:
                label = part.label(config)
                results = [result for result in results_of_file if result.place.strategy == label]
                check_result_keys(replace(study, seeds=(seed,)), results, path)
                results_by_part[part][seed] = results
    results_by_part = {part: by_seed for part, by_seed in results_by_part.items() if by_seed}
    if not results_by_part:
        old = next(config.folder.glob("*/seed*/evaluation*.jsonl"), None)
        advice = f"{old} is of an earlier version; train again under another name" if old else "train first"
        raise ConfigError(f"{config.folder} holds no evaluation yet; {advice}")
    # Without a common seed the seeds of the first strategy are taken, and the others are left out.
    shared = set.intersection(*map(set, results_by_part.values())) or set(next(iter(results_by_part.values())))
    complete = {part: by_seed for part, by_seed in results_by_part.items() if shared <= by_seed.keys()}
    missing = [quote_name(part.label(config)) for part in list_evaluated_policies(config) if part not in complete]
    notes = []
    if missing or shared != set(config.seeds):
        seeds = ", ".join(map(str, sorted(shared)))
        lacking = f"; without {', '.join(missing)}" if missing else ""
        notes.append(f"not everything has been evaluated yet: this is of the seeds {seeds}{lacking}")
    results = []
    # Parts of one variant and stage share a file, which is read once.
    files: dict[Path, None] = {}
    for part, results_by_seed in complete.items():
        for seed in config.seeds:
            if seed in shared:
                results += results_by_seed[seed]
                files[_results_file(config, part.variant, part.stage, seed)] = None
    labels = {part.label(config) for part in complete}
    unplayable = [item for item in chain.from_iterable(map(read_unplayable, files)) if item.place.strategy in labels]
    return drop_unplayable(results, unplayable), [*notes, *describe_unplayable(results, unplayable)]


def read_file(path: Path, with_episodes: bool, on_result: Callable[[Path, Result], None] | None) -> list[Result]:
    """Return all results of a file, and show each to `on_result` as it is read; see `read_run_results`."""
    results = []
    for result in read_results(path, whole=with_episodes or on_result is not None, experts=True):
        if on_result is not None and result.place.style is None:
            on_result(path, result)
        # Episodes are most of the memory of a large run.
        results.append(result if with_episodes else replace(result, episodes=()))
    return results


def _results_file(config: RunConfig, variant: str, stage: EvaluationStage, seed: int) -> Path:
    return _folder(config, variant, seed) / stage / "results.jsonl"


def list_server_folders(config: RunConfig) -> list[Path]:
    """Return the folders in which jobs and their evaluations store the counts of servers."""
    folders = []
    for variant, seed in product(config.variants, config.seeds):
        job = _folder(config, variant, seed)
        folders += [job, *(job / stage for stage in EvaluationStage)]
    return folders


def pair_variants(config: RunConfig, played: Collection[str]) -> dict[str, str | None]:
    """Return the strategy that stands for each variant, in order, with the same policy before RL.

    It is the trained policy at the first temperature, or the policy before RL where only that one was played.
    """
    first = config.evaluation.temperatures[0]
    before_by_strategy: dict[str, str | None] = {}
    for variant, spec in config.variants.items():
        after = EvaluatedPolicy(variant, EvaluationStage.AFTER, first).label(config)
        before = EvaluatedPolicy(variant, EvaluationStage.BEFORE, first).label(config)
        if after in played or before not in played:
            before_by_strategy[after] = before if spec.rl.steps else None
        else:
            before_by_strategy[before] = None
    return before_by_strategy


def sort_by_eval_set(study: StudyConfig, results: Sequence[Result]) -> list[Result]:
    """Return the results by eval set, in the order of the config."""
    eval_sets = [(eval_set.family, eval_set.size) for eval_set in study.eval_sets]
    return sorted(results, key=lambda result: eval_sets.index(result.place.eval_set))


def _folder(config: RunConfig, variant: str, seed: int | str) -> Path:
    return config.folder / variant / f"seed{seed}"
