"""`frozen_clones` keeps clones out of the loss in the first steps, after PARL (Kimi K2.5, arXiv 2602.02276). If it
works, the root learns when to delegate while accuracy of clones stays, and both improve afterwards.

    A as the scheme `scheme` has it;   steps 0 to `steps` - 1: every clone's turn is excluded;   from then on none

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Size
from selfcest_env.types import ROOT
from selfcest_training.credit import checks
from selfcest_training.credit.base import Credit, Promise, Replayed
from selfcest_training.credit.wrapping import CountsSteps, WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class FrozenClonesOptions(WrapperOptions):
    steps: Size = 20


class FrozenClones(CountsSteps, WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `grpo`; `steps` (default 20)."""

    name: ClassVar[str] = "frozen_clones"
    formula: ClassVar[str] = "as `scheme`; clones are excluded for the first `steps` steps"
    source: ClassVar[str] = "PARL, Kimi K2.5's report, arXiv 2602.02276"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = FrozenClonesOptions
    options: FrozenClonesOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        if self.state.steps >= self.options.steps:
            return credit
        kept = {key: value for key, value in credit.advantage.items() if key.agent_id == ROOT}
        clones = {key for episode in group.episodes for key, _ in episode.turns() if key.agent_id != ROOT}
        weight = {key: value for key, value in credit.weight.items() if key in kept}
        return Credit(kept, credit.excluded | clones, credit.diagnostics, weight)
