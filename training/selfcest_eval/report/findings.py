"""The findings on the stored results of a run or a study, as data.

Every finding is computed here once. `words.py` has its sentence, whether a terminal, Markdown or a page shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_env.types import Status
from selfcest_eval.report.pathologies import Count
from selfcest_eval.report.settings import AnalysisSettings
from selfcest_eval.report.sources import Source
from selfcest_eval.stats.decision_table import FamilyDecisions
from selfcest_eval.stats.frontier import FrontierComparison, Point, PointComparison, compare_frontiers, compare_points
from selfcest_eval.stats.statistics import Estimate, over_seeds, with_equal_differences
from selfcest_eval.stats.table import Curves, TableRow, make_rows, pool_families

SOLVED = 0.9  # least accuracy of a strategy that solves a cell
CHEAP = 0.9  # a strategy that fails is cheap if it spends less than this fraction of the perfect player's cost
# A pathology is common if it is in at least this share, and at least this number, of the episodes or groups.
COMMON_SHARE = 0.1
COMMON_COUNT = 5


@dataclass(frozen=True)
class ReportRows:
    """The table of a source: a row for each cell, strategy and budget, and the same for whole families."""

    of_cells: Sequence[TableRow]
    of_families: Sequence[TableRow]

    @property
    def with_pooled(self) -> list[tuple[TableRow, bool]]:
        """All rows, each with whether it pools the sizes of a family."""
        return [(row, False) for row in self.of_cells] + [(row, True) for row in self.of_families]


@dataclass(frozen=True)
class PairedComparison:
    """Two strategies on one cell, or on one family with all its sizes together.

    Attributes:
        curves: of the cell or the family.
        subject, strategy: the two strategies; the gap of accuracies is that of the subject minus the other.
        over: their frontiers over each cost that is compared.
        at: their accuracies and costs at each budget, the largest last.
    """

    curves: Curves
    subject: str
    strategy: str
    over: Mapping[str, FrontierComparison]
    at: Sequence[PointComparison]


@dataclass(frozen=True)
class UnplayedCell:
    """A strategy whose prompts fit no budget of a cell, so that it played no turn there."""

    strategy: str
    cell: str


@dataclass(frozen=True)
class CheapFailure:
    """A strategy that fails on a cell, and spends less than its perfect player.

    Attributes:
        strategy: label of the strategy.
        cell: name of the cell.
        accuracy: accuracy at the largest budget.
        cost: name of the cost with the lowest ratio.
        ratio: this cost divided by that of the perfect player.
    """

    strategy: str
    cell: str
    accuracy: float
    cost: str
    ratio: float


@dataclass(frozen=True)
class CommonPathology:
    """A pathology that is common among the episodes of a final strategy, or the training groups of a variant."""

    name: str
    owner: str
    count: Count


@dataclass(frozen=True)
class ShiftAccuracy:
    """The accuracy of a strategy on the sizes of a family that were trained on, and on those beyond.

    `None` where the family has no such size.
    """

    trained: float | None
    beyond: float | None


@dataclass(frozen=True)
class VariantAccuracy:
    """The accuracy of a final variant of a run on one family, at the largest budget.

    Attributes:
        family: name of the family.
        strategy: label of the variant.
        mean: accuracy over all sizes.
        by_shift: accuracy on trained sizes, and on the sizes beyond.
        is_solved: whether the variant solves the smallest size.
        num_instances: number of instances of all sizes.
        before: accuracy over all sizes before RL; `None`: RL did not train the variant, or nothing was evaluated
            before it.
        change: difference of `mean` and `before`.
    """

    family: str
    strategy: str
    mean: float
    by_shift: ShiftAccuracy
    is_solved: bool
    num_instances: int
    before: float | None = None
    change: Estimate | None = None


@dataclass(frozen=True)
class PolicyDecisions:
    """The decisions of a final strategy to delegate on one family under one budget, and their worth.

    Attributes:
        now: the choices of the strategy.
        before: those of the same variant before RL, if it was evaluated then.
        better: the forced choice that earns more, `always` or `never`.
        gap: reward of the policy's choices minus that of the better forced choice. Its interval is over seeds, or over
            instances if there is one seed.
    """

    now: FamilyDecisions
    before: FamilyDecisions | None
    better: str
    gap: Estimate


@dataclass(frozen=True)
class Findings:
    """The findings on one source, except comparisons of strategies, which take longer and are computed on demand.

    Attributes:
        rows: the table.
        unplayed: strategies that no budget lets begin, see `find_unplayed`.
        weak_baselines: rows of baselines that do not solve the smallest size of a family. Forced choices are left out.
        unsolved_variants: the same rows of the final variants of a run that can delegate.
        cheap_failures: strategies that are cheap because they fail, see `find_cheap_failures`.
        pathologies: common pathologies, the most frequent first.
        accuracies: accuracies of the final variants of a run, by family.
        decisions: decisions of the strategies whose choices were forced as well.
    """

    rows: ReportRows
    unplayed: Sequence[UnplayedCell]
    weak_baselines: Sequence[TableRow]
    unsolved_variants: Sequence[TableRow]
    cheap_failures: Sequence[CheapFailure]
    pathologies: Sequence[CommonPathology]
    accuracies: Sequence[VariantAccuracy]
    decisions: Sequence[PolicyDecisions]


def analyze(source: Source) -> Findings:
    """Compute the findings of a source."""
    settings = source.settings
    of_cells = _estimate_rows(source.cells, settings)
    weak_baselines = find_unsolved(of_cells, [name for name in settings.baselines if name not in settings.aside])
    variants = source.final if source.run is not None else ()
    unsolved_variants = find_unsolved(of_cells, [name for name in variants if name not in settings.baselines])
    return Findings(
        rows=ReportRows(of_cells, _estimate_rows(pool_families(source.cells), settings)),
        unplayed=find_unplayed(source.cells),
        weak_baselines=weak_baselines,
        unsolved_variants=unsolved_variants,
        cheap_failures=find_cheap_failures(source.cells, settings),
        pathologies=find_common_pathologies(source),
        accuracies=find_variant_accuracies(source, [*weak_baselines, *unsolved_variants]),
        decisions=find_policy_decisions(source),
    )


def _estimate_rows(cells: Sequence[Curves], settings: AnalysisSettings) -> list[TableRow]:
    rows: list[TableRow] = []
    for curves in cells:
        rows += make_rows(curves, settings.resampler(curves))
    return rows


def find_unplayed(cells: Sequence[Curves]) -> list[UnplayedCell]:
    """Return the strategies whose prompts are too long for every budget, cell by cell."""
    unplayed = []
    for curves in cells:
        for strategy, points in curves.strategies.items():
            if all(set(point.endings) == {Status.PROMPT_TOO_LONG} for point in points):
                unplayed.append(UnplayedCell(strategy, curves.name))
    return unplayed


def find_unsolved(rows: Sequence[TableRow], strategies: Collection[str]) -> list[TableRow]:
    """Return the rows of the smallest size of each family that these strategies do not solve at their best budget."""
    smallest: dict[str, str] = {}
    best: dict[tuple[str, str], TableRow] = {}
    for row in rows:
        family = row.curves.family
        # The option `eval_sets` asks for the smallest size first.
        is_smallest = row.curves.size == smallest.setdefault(family, row.curves.size)
        if is_smallest and row.strategy in strategies:
            key = (family, row.strategy)
            if key not in best or row.accuracy.mean > best[key].accuracy.mean:
                best[key] = row
    return [row for row in best.values() if row.accuracy.mean < SOLVED]


def find_cheap_failures(cells: Sequence[Curves], settings: AnalysisSettings) -> list[CheapFailure]:
    """Return the strategies that are cheap because they fail, in the order of cells."""
    failures = []
    for curves in cells:
        for strategy, points in curves.strategies.items():
            ratios = {}
            for cost in settings.compared:
                ratio = _compute_ratio_to_perfect_player(points[-1], cost)
                if ratio is not None:
                    ratios[cost] = ratio
            accuracy = _get_accuracy(curves, strategy)
            lowest = min(ratios, key=lambda cost: ratios[cost], default="")
            if lowest and accuracy < SOLVED and ratios[lowest] < CHEAP:
                failures.append(CheapFailure(strategy, curves.name, accuracy, lowest, ratios[lowest]))
    return failures


def _compute_ratio_to_perfect_player(point: Point, cost: str) -> float | None:
    """Return a cost over that of the cheapest perfect player; `None` if no perfect player has the cost."""
    pairs = []
    for style in point.perfect_execution:
        pair = point.mean_costs(style, cost)
        if pair is not None and pair[1] > 0:
            pairs.append(pair)
    if not pairs:
        return None
    spent, perfect = min(pairs, key=lambda pair: pair[1])
    return spent / perfect


def find_common_pathologies(source: Source) -> list[CommonPathology]:
    """Return the pathologies of final strategies, and of training, that are common; the most frequent first."""
    owners = {*source.final, *(source.run.variants if source.run else ())}
    common = []
    for (name, owner), count in source.pathologies.items():
        if owner in owners and _is_common(name, count):
            common.append(CommonPathology(name, owner, count))
    return sorted(common, key=lambda pathology: -pathology.count.found / pathology.count.possible)


def _is_common(name: str, count: Count) -> bool:
    if name == "never delegates":
        return count.found > 0
    # Always delegating may be the best choice.
    return name != "always delegates" and count.found >= max(COMMON_COUNT, COMMON_SHARE * count.possible)


def find_variant_accuracies(source: Source, unsolved: Sequence[TableRow]) -> list[VariantAccuracy]:
    """Return the accuracy of each final variant of a run on each family that it played."""
    if source.run is None:
        return []
    unsolved_keys = {(row.curves.family, row.strategy) for row in unsolved}
    accuracies = []
    for curves in pool_families(source.cells):
        for strategy in source.final:
            if strategy not in curves.strategies:
                continue
            now = curves.strategies[strategy][-1].correct
            accuracy = VariantAccuracy(
                curves.family,
                strategy,
                float(now.mean()),
                measure_accuracy_by_shift(source.cells, curves.family, strategy),
                is_solved=(curves.family, strategy) not in unsolved_keys,
                num_instances=len(now),
            )
            before = source.before.get(strategy)
            if before is not None and before in curves.strategies:
                earlier = curves.strategies[before][-1].correct
                change = source.settings.resampler(curves).estimate(now - earlier)
                # A few instances that all change alike would have an interval of one point.
                change = with_equal_differences(change, now - earlier)
                accuracy = replace(accuracy, before=float(earlier.mean()), change=change)
            accuracies.append(accuracy)
    return accuracies


def measure_accuracy_by_shift(cells: Sequence[Curves], family: str, strategy: str) -> ShiftAccuracy:
    """Return the accuracy of a strategy at the largest budget on the sizes of a family, by their shift."""
    means: dict[str, float] = {}
    for shift in ("in", "out"):
        played = [c for c in cells if (c.family, c.shift) == (family, shift) and strategy in c.strategies]
        if played:
            correct = [curves.strategies[strategy][-1].correct for curves in played]
            means[shift] = float(np.concatenate(correct).mean())
    return ShiftAccuracy(means.get("in"), means.get("out"))


def find_policy_decisions(source: Source) -> list[PolicyDecisions]:
    """Return the decisions of final strategies, by family and budget."""
    by_key = {(item.triple.free, item.family, item.budget): item for item in source.decisions}
    decisions = []
    for (strategy, family, budget), item in by_key.items():
        if strategy in source.final:
            before = by_key.get((source.before.get(strategy, ""), family, budget))
            better = "always" if mean_reward(item, "always") >= mean_reward(item, "never") else "never"
            gap = _estimate_gap_to_forced(item, better, source.settings.confidence)
            decisions.append(PolicyDecisions(item, before, better, gap))
    return decisions


def mean_reward(item: FamilyDecisions, way: str) -> float:
    """Return the mean reward over seeds of one way to choose: `free`, `always` or `never`."""
    return float(np.mean([getattr(judged, way).reward for judged in item.seeds.values()]))


def mean_regret(item: FamilyDecisions) -> float:
    """Return the mean regret over seeds of the policy's choices."""
    return float(np.mean([judged.regret for judged in item.seeds.values()]))


def _estimate_gap_to_forced(item: FamilyDecisions, forced: str, confidence: float) -> Estimate:
    """Estimate the reward over that of a forced choice: over seeds, or over instances where there is one seed."""
    if len(item.seeds) > 1:
        gaps = [judged.free.reward - getattr(judged, forced).reward for judged in item.seeds.values()]
    else:
        gaps = []
        for choices in item.sizes.values():
            gaps += [choice.free.reward - getattr(choice, forced).reward for choice in choices]
    return over_seeds(gaps, confidence)


# Comparisons


def compare_cells(cells: Sequence[Curves], settings: AnalysisSettings) -> list[PairedComparison]:
    """Compare the subject with every other strategy, cell by cell."""
    comparisons = []
    for curves in cells:
        subject = settings.subject_on(curves)
        if subject is not None:
            for strategy in curves.strategies:
                if strategy not in (subject, *settings.aside):
                    comparisons.append(compare_pair(curves, subject, strategy, settings))
    return comparisons


def compare_best_baselines(source: Source) -> list[PairedComparison]:
    """Compare the subject with the most accurate other final strategy, family by family.

    An oracle is no baseline, nor are forced choices and the subject's own weights before RL.
    """
    settings = source.settings
    comparisons = []
    for curves in pool_families(source.cells):
        subject = settings.subject_on(curves)
        names = [name for name in source.final if name in curves.strategies and settings.labels[name] == name]
        baselines = [name for name in names if name != subject]
        if subject is not None and baselines:
            best = max(baselines, key=lambda name: _get_accuracy(curves, name))
            comparisons.append(compare_pair(curves, subject, best, settings))
    return comparisons


def compare_pair(curves: Curves, subject: str, strategy: str, settings: AnalysisSettings) -> PairedComparison:
    """Compare two strategies of one cell or one family."""
    first = curves.strategies[subject]
    second = curves.strategies[strategy]
    resampler = settings.resampler(curves)
    min_difference = settings.min_difference
    over = {cost: compare_frontiers(first, second, cost, resampler, min_difference) for cost in settings.compared}
    points = zip(first, second, strict=True)
    at = [compare_points(left, right, resampler, settings.compared, min_difference) for left, right in points]
    return PairedComparison(curves, subject, strategy, over, at)


def _get_accuracy(curves: Curves, strategy: str) -> float:
    """Return the accuracy of a strategy at the largest budget."""
    return float(curves.strategies[strategy][-1].correct.mean())
