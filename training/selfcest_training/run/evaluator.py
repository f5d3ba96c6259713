"""The hook through which a run is evaluated; the trainer itself does not know how policies are compared."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from selfcest_agents.player import Player
from selfcest_training.config import RunConfig


class EvaluationStage(StrEnum):
    """When a job's policy is evaluated; the value is the folder of its results in the job's folder."""

    BEFORE = "evaluation_before_rl"
    AFTER = "evaluation"


class Evaluator:
    """Evaluates the jobs of a run. Every method of this base class does nothing, so a run with it only trains.

    Instances are sent to worker processes, so they must be picklable.
    """

    def check(self, config: RunConfig) -> None:
        """Raise `ConfigError` for an evaluation that cannot work; called before any work."""

    def check_files(self, folder: Path) -> None:
        """Raise `RecordError` if stored results of this stage's folder are damaged; called before any work."""

    def evaluate(
        self,
        config: RunConfig,
        variant: str,
        seed: int,
        stage: EvaluationStage,
        player: Player,
        report: Callable[[float, str], None],
    ) -> None:
        """Play a job's evaluation with its current weights.

        Args:
            config: of the run.
            variant, seed: the job.
            stage: before or after RL.
            player: plays with the job's weights and scores nothing.
            report: called with the share that is done, in [0, 1], and a line of progress.
        """

    def report(self, config: RunConfig) -> str:
        """Write the tables of the results in the run's folder, and return their text for a terminal."""
        return "nothing was evaluated: this run only trains"
