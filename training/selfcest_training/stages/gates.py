"""Gates: `all` learns from every group, `varied` drops groups without variance and refills the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup
from selfcest_training.stages.base import Admission


@dataclass(frozen=True)
class AdmitAll:
    """The default gate."""

    def admit(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> Admission:
        return Admission(tuple(groups))


@dataclass(frozen=True)
class AdmitVaried:
    """Dynamic sampling: a group whose returns are all equal teaches a group baseline nothing.

    Source: DAPO (arXiv 2503.14476), section 3.2, which keeps prompts whose accuracy is neither 0 nor 1 and samples
    until the batch is full. Here the returns decide, of which accuracy is one term; and rounds are bounded, because a
    policy that has learned its tasks would sample without end. A step that stays short keeps the denominators of a full
    one.

    Attributes:
        tolerance: returns that are no further apart than this are equal.
        max_rounds: of rollouts in a step, the first included.
    """

    tolerance: float = 0.0
    max_rounds: int = 4

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:  # as every comparison with NaN
            raise ConfigError(f"tolerance is {self.tolerance!r}; expected a number >= 0")
        if self.max_rounds < 1:
            raise ConfigError(f"max_rounds is {self.max_rounds!r}; expected a whole number >= 1 (1: no refill)")

    def admit(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> Admission:
        kept = [group for group in groups if self._varied(group)][:wanted]
        return Admission(tuple(kept), wanted - len(kept) if rounds < self.max_rounds else 0)

    def _varied(self, group: EpisodeGroup) -> bool:
        returns = [episode.team_return for episode in group.episodes]
        return max(returns) - min(returns) > self.tolerance
