"""What credit schemes that change another scheme share, and the base of those that count the learner's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from selfcest_env.plugin import Configured, PlainState, PlugIn, Stateful
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked
from selfcest_env.types import TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Internals, TurnCounts
from selfcest_training.credit.registry import make_assigner, require_pure


@dataclass(frozen=True)
class WrapperOptions(Checked):
    """The option of every wrapper.

    Attributes:
        scheme: wrapped scheme, with `name` and `options`; `null`: the default scheme of the wrapper.
    """

    scheme: PlugIn | None = None


class WrapperScheme(Configured, CreditAssigner):
    """Base of a scheme that changes the credit of another scheme and requests the same replays.

    Attributes:
        default: name of the scheme that is wrapped by default.
        inner: the wrapped scheme, a pure function of one group.
    """

    default: ClassVar[str] = "grpo"

    Options: ClassVar[type[Any]] = WrapperOptions
    options: WrapperOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        chosen = self.options.scheme or PlugIn(self.default)
        self.inner = make_assigner(chosen.name, chosen.options, where="scheme.options")
        require_pure(self.inner, "scheme")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return checks.request_replays(self.inner, group)

    def check_constant(self, loss_denominator_tokens: float | None) -> None:
        self.inner.check_constant(loss_denominator_tokens)

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        return self.inner.more_replays(episode, turn_counts)


def select_turns(
    credit: Credit, group: EpisodeGroup, advantage: Mapping[TurnKey, Advantage], diagnostics: Mapping[str, float]
) -> Credit:
    """Return a credit of the turns in `advantage`; all other turns of the group are excluded.

    Args:
        credit: the credit that is changed; its weights and diagnostics stay.
        group: the group of this credit.
        advantage: advantages of the turns that train.
        diagnostics: diagnostics in addition to those of the credit.
    """
    excluded: set[TurnKey] = set()
    for episode in group.episodes:
        excluded.update(key for key, _ in episode.turns() if key not in advantage)
    weight = {key: value for key, value in credit.weight.items() if key in advantage}
    return Credit(advantage, frozenset(excluded), {**credit.diagnostics, **diagnostics}, weight)


@stored_as(steps="steps")
@dataclass
class StepCount(PlainState):
    """The number of the learner's steps so far."""

    steps: int = 0


class CountsSteps(Stateful[StepCount], CreditAssigner):
    """Base of a scheme that depends on the number of the learner's steps. Checkpoints hold the number."""

    def initial_state(self) -> StepCount:
        return StepCount()

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        """Count one step."""
        self.state.steps += 1
