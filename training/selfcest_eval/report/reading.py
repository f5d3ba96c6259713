"""How a study's results are read: names, what is compared with what, and the head of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.errors import RecordError
from selfcest_env.structure import format_value
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.policies import is_seeded
from selfcest_eval.play.results import Result
from selfcest_eval.play.strategies import find_strategy, shown_name
from selfcest_eval.stats.decision_table import find_forced_triples
from selfcest_eval.stats.statistics import Resampler
from selfcest_eval.stats.table import Curves


@dataclass(frozen=True)
class Reading:
    """How results are read.

    Attributes:
        subjects: strategies that others are compared with; on a cell the first of them that has played it.
        aside: strategies that nobody is compared with: forced choices, which are what a policy decided against.
        labels: names of strategies in tables.
        baselines: strategies that cannot delegate and are no oracle.
        swept: the limit that a budget is.
        costs: names of all costs, but for wall-clock.
        compared: those at which strategies are compared.
        crossed, resamples, confidence: of the bootstrap, see `Resampler`.
        min_difference: of two accuracies; there is no verdict on a smaller one.
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

    def resampler(self, curves: Curves) -> Resampler:
        return curves.resampler(crossed=self.crossed, resamples=self.resamples, confidence=self.confidence)

    def subject_on(self, curves: Curves) -> str | None:
        """Return the strategy that others are compared with on a cell; `None`: no subject has played it."""
        return next((name for name in self.subjects if name in curves.strategies), None)

    def intervals(self, seeds: int) -> str:
        """What the intervals are over, as a sentence."""
        over = f"instances and over {seeds} seeds of the weights" if self.crossed and seeds > 1 else "instances"
        alone = "; the weights are those of one seed" if self.crossed and seeds == 1 else ""
        return (
            f"Intervals are {self.confidence:.0%} intervals of a paired bootstrap over {over}{alone}. Those between "
            "frontiers hold for a whole range of costs at once; every other one is for itself, so of many some exclude "
            f"the truth. There is no verdict on a difference of accuracy below {self.min_difference:g}."
        )


def reading_of(config: StudyConfig, *, crossed: bool | None = None, subjects: Sequence[str] = ()) -> Reading:
    """From the config alone: nothing is played, and no policy need be there any more.

    Args:
        config: of the study.
        subjects: see `Reading`; by default the study's.
        crossed: `Study.crossed`; `None`: as far as the config tells it.
    """
    found = {label: find_strategy(spec.name or label) for label, spec in config.strategies.items()}
    limits = {label: config.limits_at(config.budgets[-1], label) for label in found}
    if crossed is None:
        crossed = any(is_seeded(config.policy_of(label)) for label in found)
    return Reading(
        subjects=subjects or (config.subject_strategy,),
        aside=[forced for triple in find_forced_triples(config) for forced in (triple.always, triple.never)],
        labels={label: shown_name(label, strategy) for label, strategy in found.items()},
        baselines=[
            label
            for label, strategy in found.items()
            if not strategy.oracle and not (strategy.delegates and limits[label].delegation)
        ],
        swept=config.swept,
        costs=tuple(config.measures),
        compared=config.compared_costs,
        crossed=crossed,
        resamples=config.resamples,
        confidence=config.confidence,
        min_difference=config.min_difference,
    )


def check_places(config: StudyConfig, results: Sequence[Result], file: Path) -> None:
    """Refuse stored results of another study than the config's, as of a config that was edited since.

    Raises:
        RecordError: a result of a cell, a strategy, a budget or a seed that the config lacks.
    """
    known: dict[str, Sequence[object]] = {
        "eval set": [(eval_set.family, eval_set.size) for eval_set in config.eval_sets],
        "strategy": list(config.strategies),
        "budget": config.budgets,
        "seed": config.seeds,
    }
    for place in (result.place for result in results):
        for what, value in zip(known, (place.eval_set, place.strategy, place.budget, place.seed), strict=True):
            if value not in known[what]:
                shown = " ".join(value) if isinstance(value, tuple) else value
                choices = [" ".join(one) if isinstance(one, tuple) else one for one in known[what]]
                raise RecordError(
                    f"{file} has a result of the {what} {format_value(shown)}, which the config of its folder lacks; "
                    f"expected one of {format_value(choices)}: put the {what} back into the config, or move the file "
                    "away and --resume"
                )


def headline(config: StudyConfig, cells: Sequence[Curves], reading: Reading) -> str:
    """What was played, in a few sentences."""
    sizes = sorted({len(curves.task_ids) for curves in cells})
    instances = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    oracles = [shown for label, shown in reading.labels.items() if shown != label]
    knows = f" {', '.join(oracles)}: no policy, since it uses what no player can know." if oracles else ""
    budget = (
        f" A budget bounds {config.swept.replace('_', ' ')} of the whole strategy on an instance, clones and samples "
        "included."
        if config.budgets != (None,)
        else ""
    )
    money = "" if config.price is None else f" Money is {config.price}."
    return (
        f"{instances} instances a cell, the same for all strategies; {len(cells[0].seeds)} seed(s).{budget} Costs are "
        f"means per instance whose prompt fitted.{money}{knows} {players(config)}"
    )


def players(config: StudyConfig) -> str:
    """Which strategies each policy plays, by its folder, or else by its name and options."""
    strategies: dict[str, list[str]] = {}
    for strategy in config.strategies:
        policy = config.policy_of(strategy)
        name = f"{policy.name} {dict(policy.options)}" if policy.options else policy.name
        strategies.setdefault(str(policy.options.get("folder") or name), []).append(strategy)
    return "Played by " + "; ".join(f"`{policy}`: {', '.join(played)}" for policy, played in strategies.items()) + "."
