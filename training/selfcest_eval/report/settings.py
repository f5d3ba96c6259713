"""The settings by which a study's results are read, and the head of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from selfcest_env.errors import RecordError
from selfcest_env.structure import format_value
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.policies import is_seeded
from selfcest_eval.play.results import Result
from selfcest_eval.play.strategies import STRATEGIES, display_name, quote_name
from selfcest_eval.stats.decision_table import find_forced_triples
from selfcest_eval.stats.statistics import Resampler
from selfcest_eval.stats.table import Curves


@dataclass(frozen=True)
class AnalysisSettings:
    """The settings by which results are read.

    Attributes:
        subjects: strategies that the others are compared with. On each cell it is the first one that has played it.
        aside: strategies that are not compared: the forced choices, which only judge a policy's own choice.
        labels: names of strategies in tables.
        baselines: strategies that cannot delegate and are no oracle.
        swept: the limit that budgets set.
        costs: names of all costs, except wall-clock.
        compared: costs at which strategies are compared.
        crossed, resamples, confidence: options of the bootstrap, see `Resampler`.
        min_difference: smallest difference of two accuracies that a verdict counts.
    """

    subjects: Sequence[str]
    aside: Sequence[str]
    labels: Mapping[str, str]
    baselines: Sequence[str]
    swept: str
    costs: Sequence[str]
    compared: Sequence[str]
    crossed: bool
    resamples: int
    confidence: float
    min_difference: float

    @property
    def names(self) -> dict[str, str]:
        """The names of strategies in sentences."""
        return {name: quote_name(label) for name, label in self.labels.items()}

    def resampler(self, curves: Curves) -> Resampler:
        return _make_resampler(
            len(curves.task_ids),
            len(curves.seeds),
            crossed=self.crossed,
            resamples=self.resamples,
            confidence=self.confidence,
        )

    def subject_on(self, curves: Curves) -> str | None:
        """Return the strategy that others are compared with on a cell; `None`: no subject has played it."""
        return next((name for name in self.subjects if name in curves.strategies), None)

    def intervals(self, seeds: int) -> str:
        """Return the sentences on intervals of a report over this many seeds."""
        population = "instances"
        if self.crossed and seeds > 1:
            population = f"instances and over {seeds} seeds of the weights"
        elif self.crossed:
            population = "instances; the weights are those of one seed"
        return (
            f"Intervals are {self.confidence:.0%} intervals of a paired bootstrap over {population}. Those between "
            "frontiers hold for a whole range of costs at once. Every other one holds only by itself, so some of many "
            f"exclude the true value. There is no verdict on a difference of accuracy below {self.min_difference:g}."
        )


# Resamples follow from the shape, and most cells of a report have the same one.
_make_resampler = lru_cache(maxsize=4)(Resampler)


def make_settings(
    config: StudyConfig, *, crossed: bool | None = None, subjects: Sequence[str] = ()
) -> AnalysisSettings:
    """Return the settings of a study. They follow from its config, so the policies need not exist any more.

    Args:
        config: of the study.
        subjects: see `AnalysisSettings`; by default the study's.
        crossed: `Study.crossed`; `None`: as far as the config tells it.
    """
    strategies = {label: STRATEGIES.load(spec.name or label) for label, spec in config.strategies.items()}
    baselines = []
    for label, strategy in strategies.items():
        can_delegate = strategy.delegates and config.limits_at(config.budgets[-1], label).delegation
        if not strategy.oracle and not can_delegate:
            baselines.append(label)
    if crossed is None:
        crossed = any(is_seeded(config.policy_of(label)) for label in strategies)
    triples = find_forced_triples(config)
    return AnalysisSettings(
        subjects=subjects or (config.subject_strategy,),
        aside=[*(triple.always for triple in triples), *(triple.never for triple in triples)],
        labels={label: display_name(label, strategy) for label, strategy in strategies.items()},
        baselines=baselines,
        swept=config.swept,
        costs=tuple(config.measures),
        compared=config.compared_costs,
        crossed=crossed,
        resamples=config.resamples,
        confidence=config.confidence,
        min_difference=config.min_difference,
    )


def check_result_keys(config: StudyConfig, results: Sequence[Result], file: Path) -> None:
    """Refuse stored results of another study than the config's, as of a config that was edited since.

    Raises:
        RecordError: a result of an eval set, a strategy, a budget or a seed that the config lacks.
    """
    known: dict[str, Sequence[object]] = {
        "eval set": [f"{eval_set.family} {eval_set.size}" for eval_set in config.eval_sets],
        "strategy": list(config.strategies),
        "budget": config.budgets,
        "seed": config.seeds,
    }
    for result in results:
        key = result.place
        values = (f"{key.family} {key.size}", key.strategy, key.budget, key.seed)
        for title, value in zip(known, values, strict=True):
            if value not in known[title]:
                raise RecordError(
                    f"{file} has a result of the {title} {format_value(value)}, which the config of its folder lacks; "
                    f"expected one of {format_value(list(known[title]))}: put the {title} back into the config, or "
                    "move the file away and --resume"
                )


def describe_setup(config: StudyConfig, cells: Sequence[Curves], settings: AnalysisSettings) -> str:
    """Return the first sentences of a report: instances, budgets, costs and players."""
    sentences = [f"{describe_sizes_of_cells(cells)}, the same for all strategies; {len(cells[0].seeds)} seed(s)."]
    if config.budgets != (None,):
        limit = config.swept.replace("_", " ")
        sentences.append(f"A budget bounds {limit} of the whole strategy on an instance, clones and samples included.")
    sentences.append("Costs are means per instance whose prompt fitted.")
    if config.price is not None:
        sentences.append(f"Money is {config.price}.")
    oracles = [quote_name(name) for label, name in settings.labels.items() if name != label]
    if oracles:
        sentences.append(f"{', '.join(oracles)}: no policy, since it uses information that no player can have.")
    return " ".join([*sentences, describe_players(config)])


def describe_sizes_of_cells(cells: Sequence[Curves]) -> str:
    """Return the number of instances of a cell, as a range if cells differ."""
    counts = {len(curves.task_ids) for curves in cells}
    instances = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{instances} instances per cell"


def describe_players(config: StudyConfig) -> str:
    """Return the strategies of each policy, which is named by its folder, or else by its name and options."""
    strategies_by_policy: dict[str, list[str]] = {}
    for strategy in config.strategies:
        policy = config.policy_of(strategy)
        name = f"{policy.name} {dict(policy.options)}" if policy.options else policy.name
        strategies_by_policy.setdefault(str(policy.options.get("folder") or name), []).append(quote_name(strategy))
    parts = [f"`{policy}`: {', '.join(strategies)}" for policy, strategies in strategies_by_policy.items()]
    return f"Played by {'; '.join(parts)}."
