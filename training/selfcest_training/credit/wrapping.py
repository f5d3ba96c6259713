"""What schemes have in common that change the credit of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from selfcest_env.plugin import Configured, PlainState, PlugIn, Stateful
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked
from selfcest_training.credit import checks
from selfcest_training.credit.base import CreditAssigner, Internals, Shapes
from selfcest_training.credit.registry import make_assigner, require_pure


class Wrapping(Configured, CreditAssigner):
    """Base of a scheme around another one, which must be a pure function of one group. It asks for what that one asks.

    Attributes:
        inside: the scheme that is wrapped.
    """

    default: ClassVar[str] = "grpo"

    @dataclass(frozen=True)
    class Options(Checked):
        """Option: `scheme`, `{name, options}` or null (default) for the class's `default`."""

        scheme: PlugIn | None = None

    options: Options

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        chosen = self.options.scheme or PlugIn(self.default)
        self.inside = make_assigner(chosen.name, chosen.options, where="scheme.options")
        require_pure(self.inside, "scheme")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return checks.ask(self.inside, group)

    def check_constant(self, loss_denominator_tokens: float) -> None:
        self.inside.check_constant(loss_denominator_tokens)

    def more_replays(self, episode: EpisodeRecord, shapes: Shapes) -> Sequence[Replay]:
        return self.inside.more_replays(episode, shapes)


@stored_as(steps="steps")
@dataclass
class StepCount(PlainState):
    """Steps of the learner so far."""

    steps: int = 0


class CountsSteps(Stateful[StepCount], CreditAssigner):
    """Base of a scheme that changes with the steps of the learner, which are counted here and kept in checkpoints."""

    def initial_state(self) -> StepCount:
        return StepCount()

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        """Count the step."""
        self.state.steps += 1
