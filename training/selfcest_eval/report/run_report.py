"""The report of a training run: its files, and the lines that a terminal shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from selfcest_agents.player import Player
from selfcest_eval.play.costs import cost_name
from selfcest_eval.play.store import check_store
from selfcest_eval.report.figures import learning_figure
from selfcest_eval.report.jobs import compute_lines
from selfcest_eval.report.learning import return_lines, returns, write_learning_csv
from selfcest_eval.report.reading import Reading, headline
from selfcest_eval.report.sources import Source, read_run
from selfcest_eval.report.study_report import SOLVED, PairedComparison, write_report
from selfcest_eval.report.training_run import check_evaluation, evaluate_job
from selfcest_eval.report.words import times
from selfcest_eval.stats.decision_table import Decided
from selfcest_eval.stats.table import Curves
from selfcest_training.config import RunConfig
from selfcest_training.run.evaluator import EvaluationStage, Evaluator

# A plot takes a second, and every run pays it.
_PLOTS = ("total_tokens", "critical_path_tokens")
_COSTS = ("total_tokens", "critical_path_tokens", "peak_context", "kv_token_steps")


def run_verdict(source: Source, found: Sequence[PairedComparison], reading: Reading) -> str:
    """Return a line or two on each family, the variants that can be compared, decisions, and what was not learned."""
    cells = source.cells
    final = source.final
    families = dict.fromkeys(curves.family for curves in cells)
    lines = [line for family in families if (line := _accuracy(family, cells, final))]
    lines += _equal(found, final, reading)
    lines += _decided(source.decisions, final)
    unsolved = [
        f"{variant} {accuracy:.2f} on {curves.name}"
        for variant in final
        for curves in _smallest(cells, variant)
        if (accuracy := curves.strategies[variant][-1].correct.mean()) < SOLVED
    ]
    lines.append(
        f"not learned: {'; '.join(unsolved)}" if unsolved else "every variant solves the smallest sizes it plays"
    )
    return "\n".join(lines)


def _accuracy(family: str, cells: Sequence[Curves], final: Sequence[str]) -> str:
    said = []
    for variant in final:
        here = [curves for curves in cells if curves.family == family and variant in curves.strategies]
        means = {
            shift: np.mean([c.strategies[variant][-1].correct.mean() for c in here if c.shift == shift])
            for shift in ("in", "out")
            if any(c.shift == shift for c in here)
        }
        if here:
            said.append(f"{variant} " + ", ".join(f"{mean:.2f}" for mean in means.values()))
    outside = any(curves.shift == "out" for curves in cells if curves.family == family)
    return f"{family}, accuracy{' in and out of distribution' if outside else ''}: {'; '.join(said)}" if said else ""


def _equal(found: Sequence[PairedComparison], final: Sequence[str], reading: Reading) -> list[str]:
    """Costs of a variant over another's, on cells where both are as accurate."""
    lines = []
    for first, second in dict.fromkeys((item.subject, item.strategy) for item in found):
        if first not in final or second not in final:
            continue
        items = [item for item in found if (item.subject, item.strategy) == (first, second)]
        pairs = [item.at[-1] for item in items if item.at[-1].equally_accurate(reading.min_difference)]
        costs = [
            f"{cost_name(cost)} {times(float(np.mean([p.ratios[cost].mean for p in pairs if cost in p.ratios])))}"
            for cost in _COSTS
            if any(cost in pair.ratios for pair in pairs)
        ]
        where = f"on the {len(pairs)} of {len(items)} sizes on which both are as accurate"
        lines.append(f"{first} over {second}, {where}: {', '.join(costs) or 'no cost can be compared'}")
    return lines


def _decided(decisions: Sequence[Decided], final: Sequence[str]) -> list[str]:
    lines = []
    for after in decisions:
        if after.triple.free not in final:
            continue
        before = [d for d in decisions if d.family == after.family and d is not after and d.triple.free not in final]
        shares = [" ".join(f"{share:.2f}" for share in item.shares) for item in (*before, after)]
        rewards = [_mean(item, "free") for item in (*before, after)]
        regrets = [np.mean([judged.regret for judged in item.seeds.values()]) for item in (*before, after)]
        moved = " -> ".join(shares)
        lines.append(f"{after.family}, share delegated at {', '.join(after.sizes)}: {moved}")
        lines.append(
            f"{after.family}, reward {' -> '.join(f'{r:.3f}' for r in rewards)} (always {_mean(after, 'always'):.3f}, "
            f"never {_mean(after, 'never'):.3f}); regret {' -> '.join(f'{r:.3f}' for r in regrets)}"
        )
    return lines


def _mean(item: Decided, way: str) -> float:
    return float(np.mean([getattr(judged, way).reward for judged in item.seeds.values()]))


def _smallest(cells: Sequence[Curves], variant: str) -> list[Curves]:
    """The first cell of every family that a variant plays."""
    found: dict[str, Curves] = {}
    for curves in cells:
        if variant in curves.strategies:
            found.setdefault(curves.family, curves)
    return list(found.values())


def report_run(config: RunConfig) -> str:
    """Write tables, CSV files and plots of a run's folder.

    Returns:
        What a terminal shows: warnings, the verdict, and one line for each family and variant. Single jobs are only in
        table.md.

    Raises:
        ConfigError: the config asks for an evaluation, and nothing has been evaluated.
    """
    source = read_run([config], for_page=False)
    warnings = [f"warning: {line}" for line in source.warnings]
    lines = [*return_lines(source.jobs), *compute_lines(source.jobs)]
    if curves := returns(source.jobs):
        write_learning_csv(curves, config.folder / "learning_curves.csv")
        learning_figure(curves, ["return"], [config.folder / "learning_curves.png"])
    if not source.cells:
        return "\n".join([*warnings, *lines])
    shown, _ = write_report(
        config.folder,
        source.cells,
        source.reading,
        headline(source.study, source.cells, source.reading),
        [*warnings, *lines],
        plots=_PLOTS,
        decisions=source.decisions,
        verdict_of=partial(run_verdict, source),
        variants={name: source.before.get(name) for name in source.final},
    )
    return "\n".join([*warnings, shown])


class RunEvaluation(Evaluator):
    """The evaluation of a training run as a study."""

    def check(self, config: RunConfig) -> None:
        check_evaluation(config)

    def check_files(self, folder: Path) -> None:
        check_store(folder)

    def evaluate(
        self,
        config: RunConfig,
        variant: str,
        seed: int,
        stage: EvaluationStage,
        player: Player,
        report: Callable[[float, str], None],
    ) -> None:
        evaluate_job(config, variant, seed, stage, player, report)

    def report(self, config: RunConfig) -> str:
        return report_run(config)
