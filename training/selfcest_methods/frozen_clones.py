"""`frozen_clones` keeps the turns of clones out of the loss in the first steps.

Source: PARL (Kimi K2.5, arXiv 2602.02276). In the paper sub-agents stay frozen. Here root and clones share their
weights, so only the loss of clones is left out, and only at first. Details: docs/methods.md.

    A as the scheme `scheme` has it;   steps 0 to `steps` - 1: every turn of a clone is excluded;   later none

Expected effect: the root learns when to delegate while the accuracy of clones stays, and both improve afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Size
from selfcest_env.types import ROOT
from selfcest_training.credit import checks
from selfcest_training.credit.base import Credit, Promise, ReplayRecords
from selfcest_training.credit.wrapping import CountsSteps, WrapperOptions, WrapperScheme, select_turns


@dataclass(frozen=True)
class FrozenClonesOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        steps: number of steps in which clones do not train.
    """

    steps: Size = 20


class FrozenClones(CountsSteps, WrapperScheme):
    """Takes the credit of another scheme, by default `grpo`, and excludes clones in the first steps."""

    name: ClassVar[str] = "frozen_clones"
    formula: ClassVar[str] = "as `scheme`; clones are excluded for the first `steps` steps"
    source: ClassVar[str] = "PARL, Kimi K2.5's report, arXiv 2602.02276"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = FrozenClonesOptions
    options: FrozenClonesOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        if self.state.steps >= self.options.steps:
            return credit
        root_advantage = {key: value for key, value in credit.advantage.items() if key.agent_id == ROOT}
        return select_turns(credit, group, root_advantage, {})
