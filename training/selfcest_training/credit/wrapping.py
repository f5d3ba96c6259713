"""What schemes have in common that change the credit of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.structure import Checked
from selfcest_training.credit import checks
from selfcest_training.credit.base import CreditAssigner, Internals, Shapes
from selfcest_training.credit.registry import make_assigner, require_pure


@dataclass(frozen=True)
class Wrapping(CreditAssigner, Checked):
    """Base of a scheme around another one, which must be a pure function of one group. It asks for what that one asks.

    Option: `scheme`, `{name, options}` or null (default) for `default`.
    """

    default: ClassVar[str] = "grpo"

    scheme: PlugIn | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_pure(self.inside, "scheme")

    @cached_property
    def inside(self) -> CreditAssigner:
        """The scheme that is wrapped."""
        chosen = self.scheme or PlugIn(self.default)
        return make_assigner(chosen.name, chosen.options, where="scheme.options")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return checks.ask(self.inside, group)

    def check_constant(self, constant_tokens: float) -> None:
        self.inside.check_constant(constant_tokens)

    def more_replays(self, episode: EpisodeRecord, shapes: Shapes) -> Sequence[Replay]:
        return self.inside.more_replays(episode, shapes)


class CountsSteps(CreditAssigner):
    """Base of a scheme that changes with the steps of the learner, which are counted here and kept in checkpoints."""

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        """Count the step."""
        self._memory["steps"] += 1

    @property
    def steps_done(self) -> int:
        return self._memory["steps"]

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._memory.update(state)

    @cached_property
    def _memory(self) -> dict[str, int]:
        return {"steps": 0}
