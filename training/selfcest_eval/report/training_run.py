"""A training run's evaluation: a study with one budget, the run's limits, of every variant before and after RL.

A job plays its own part of it with the weights that it has, and what all jobs have played is read as one study.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.reward import make_reward
from selfcest_env.tasks import Style
from selfcest_eval.play.config import StrategySpec, StudyConfig
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.policies import SEED
from selfcest_eval.play.results import Result, read_results, read_unplayable
from selfcest_eval.play.store import Store
from selfcest_eval.play.study import Study
from selfcest_eval.play.unplayable import leave_out, unplayable_lines
from selfcest_eval.report.reading import check_places
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
        """The folder of the weights, for any seed; a variant without RL has them once its warm start has ended."""
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


def parts_of(config: RunConfig) -> list[EvaluatedPolicy]:
    """In the order of the table. Before RL a variant is evaluated at one temperature alone, as forced choices are."""
    greedy, *others = config.evaluation.temperatures
    parts = []
    for variant, spec in config.variants.items():
        ways = ("plain", *FORCED) if spec.forced else ("plain",)
        parts += [EvaluatedPolicy(variant, EvaluationStage.BEFORE, greedy, way) for way in ways if spec.rl.steps]
        parts += [EvaluatedPolicy(variant, EvaluationStage.AFTER, greedy, way) for way in ways]
        parts += [EvaluatedPolicy(variant, EvaluationStage.AFTER, temperature) for temperature in others]
    return parts


def study_of(config: RunConfig, parts: Sequence[EvaluatedPolicy] | None = None) -> StudyConfig:
    """The study that a run's evaluation is, or a part of it. Its subject is the last variant that can delegate."""
    parts = parts_of(config) if parts is None else parts
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
                styles=styles_of(config, part.variant) if part.strategy not in FORCED else (),
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


def styles_of(config: RunConfig, variant: str) -> tuple[Style, ...]:
    """Of a variant's perfect players: those that its warm start shows, or all without one, where it has the means."""
    limits, phases = config.limits_of(variant), config.variants[variant].warmstart.phases
    shown = {
        style
        for phase in phases
        for spec in phase.mix.values()
        for style, weight in spec.styles.items()
        if spec.share > 0 and weight > 0
    }
    means = {Style.DELEGATE: limits.delegation, Style.READ: limits.reading, Style.SOLVE: True}
    return tuple(style for style in Style if means[style] and (style in shown or not phases))


def check_evaluation(config: RunConfig) -> None:
    """Raise what is wrong with the eval sets now, rather than after the warm start."""
    if not config.evaluation.eval_sets:
        return
    study, reward = study_of(config), make_reward(config.reward.name, **config.reward.options)
    for eval_set in study.eval_sets:
        tasks = instances_of(study, eval_set, source_of(study, eval_set))
        reward.check(tasks, f"eval set {eval_set.family} {eval_set.size}")


def evaluate_job(
    config: RunConfig,
    variant: str,
    seed: int,
    stage: EvaluationStage,
    player: Player,
    report: Callable[[float, str], None],
) -> None:
    """Play the part of the study that belongs to one job, with the weights of that job."""
    parts = [part for part in parts_of(config) if (part.variant, part.stage) == (variant, stage)]
    if not parts or not config.evaluation.eval_sets:
        return
    study = Study(replace(study_of(config, parts), seeds=(seed,)))
    done = 0

    def on_played(count: int, line: str) -> None:
        nonlocal done
        done += count
        report(done / study.size, line)

    study.play(Store(_folder(config, variant, seed) / stage), on_played, player)


def results_of(config: RunConfig, *, whole: bool = False) -> tuple[list[Result], list[str]]:
    """What all jobs have played so far, of the seeds that every strategy has; and a sentence if that leaves some out.

    Args:
        config: of the run.
        whole: with the episodes of every variant, and not only of those whose choices were forced.

    Raises:
        ConfigError: there is nothing, or an earlier version wrote it.
    """
    study = study_of(config)
    found = {part: dict(_stored(config, study, part, whole)) for part in parts_of(config)}
    found = {part: by_seed for part, by_seed in found.items() if by_seed}
    if not found:
        old = next(config.folder.glob("*/seed*/evaluation*.jsonl"), None)
        why = f"{old} is of an earlier version; train again under another name" if old else "train first"
        raise ConfigError(f"{config.folder} holds no evaluation yet; {why}")
    shared = set.intersection(*map(set, found.values())) or set(next(iter(found.values())))
    complete = {part: by_seed for part, by_seed in found.items() if shared <= by_seed.keys()}
    missing = [part.label(config) for part in parts_of(config) if part not in complete]
    notes = []
    if missing or shared != set(config.seeds):
        seeds = ", ".join(map(str, sorted(shared)))
        lacking = f"; without {', '.join(missing)}" if missing else ""
        notes.append(f"not everything has been evaluated yet: this is of the seeds {seeds}{lacking}")
    order = [(part, seed) for part in complete for seed in config.seeds if seed in shared]
    results = [result for part, seed in order for result in complete[part][seed]]
    stored = dict.fromkeys(_file(config, part, seed) for part, seed in order)  # variants share none, stages of one may
    labels = {part.label(config) for part, _ in order}
    lost = [one for path in stored for one in read_unplayable(path) if one.place.strategy in labels]
    return leave_out(results, lost), [*notes, *unplayable_lines(results, lost)]


def _stored(
    config: RunConfig, study: StudyConfig, part: EvaluatedPolicy, whole: bool
) -> Iterator[tuple[int, list[Result]]]:
    for seed in config.seeds:
        path, label = _file(config, part, seed), part.label(config)
        if path.exists():
            # Whole where it was forced, for what it decided is read off its episodes.
            found = read_results(path, whole=whole or config.variants[part.variant].forced, experts=True)
            results = [result for result in found if result.place.strategy == label]
            check_places(replace(study, seeds=(seed,)), results, path)
            yield seed, results


def _file(config: RunConfig, part: EvaluatedPolicy, seed: int) -> Path:
    return _folder(config, part.variant, seed) / part.stage / "results.jsonl"


def server_folders(config: RunConfig) -> list[Path]:
    """Where jobs and their evaluations count what servers did."""
    jobs = [_folder(config, variant, seed) for variant in config.variants for seed in config.seeds]
    return [folder for job in jobs for folder in (job, *(job / stage for stage in EvaluationStage))]


def variants_of(config: RunConfig, played: Collection[str]) -> dict[str, str | None]:
    """The strategy that stands for every variant, in order: its trained policy, greedy, and the same before RL.

    A variant whose trained policy was not played is what it is before RL, where that was.
    """
    found: dict[str, str | None] = {}
    for variant, spec in config.variants.items():
        after, before = (
            EvaluatedPolicy(variant, stage, config.evaluation.temperatures[0]).label(config)
            for stage in (EvaluationStage.AFTER, EvaluationStage.BEFORE)
        )
        if after in played or before not in played:
            found[after] = before if spec.rl.steps else None
        else:
            found[before] = None
    return found


def in_order(study: StudyConfig, results: Sequence[Result]) -> list[Result]:
    """By eval set, as the config has them."""
    eval_sets = [(eval_set.family, eval_set.size) for eval_set in study.eval_sets]
    return sorted(results, key=lambda result: eval_sets.index(result.place.eval_set))


def _folder(config: RunConfig, variant: str, seed: int | str) -> Path:
    return config.folder / variant / f"seed{seed}"
