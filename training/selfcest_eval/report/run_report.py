"""The report of a training run: its files, and the lines that a terminal shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from selfcest_agents.player import Player
from selfcest_eval.play.store import check_store
from selfcest_eval.report.figures import draw_learning_curves
from selfcest_eval.report.jobs import describe_compute
from selfcest_eval.report.learning import compute_return_curves, describe_returns, write_learning_csv
from selfcest_eval.report.sources import read_run
from selfcest_eval.report.study_report import write_report
from selfcest_eval.report.training_run import check_evaluation, evaluate_job
from selfcest_training.config import RunConfig
from selfcest_training.run.evaluator import EvaluationStage, Evaluator

# A plot takes a second, and every run writes them.
_PLOTS = ("total_tokens", "critical_path_tokens")


def report_run(config: RunConfig) -> str:
    """Write tables, CSV files and plots of a run's folder.

    Returns:
        The lines of a terminal: warnings, the verdict, and one line for each family and variant. Single jobs are only
        in table.md.

    Raises:
        ConfigError: the config asks for an evaluation, and nothing has been evaluated.
    """
    source = read_run([config], for_page=False)
    lines = [*describe_returns(source.jobs), *describe_compute(source.jobs)]
    curves = compute_return_curves(source.jobs)
    if curves:
        write_learning_csv(curves, config.folder / "learning_curves.csv")
        draw_learning_curves(curves, ["return"], [config.folder / "learning_curves.png"])
    if not source.cells:
        return "\n".join([*(f"warning: {line}" for line in source.warnings), *lines])
    shown, _ = write_report(source, lines, plots=_PLOTS)
    return shown


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
