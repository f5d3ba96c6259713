"""`frozen_clones`: as another scheme, but for the first `steps` steps clones take no part in the loss.

    A as the scheme `scheme` has it;   steps 0 to `steps` - 1: every clone's turn is excluded;   from then on none

Source: PARL (Kimi K2.5's report, arXiv 2602.02276, Agent Swarm), which trains the orchestrator with frozen
sub-agents, since otherwise an outcome says little of who was right and the two chase each other. The report freezes
them for good; here they join in, since both are to be trained.

In a tree every agent below the root is a clone, one that delegates in its turn too. Roots and clones share weights,
so what is frozen is clones' tokens in the loss: how clones behave still moves with the root's updates. Denominators
count episodes or a constant and do not notice (rule 8). Steps are the learner's: with rollouts ahead the step that
updates counts, not the one that played. What is asked for does not depend on the step (`LearningAssigner`), so
replays of a scheme inside are paid for while clones are frozen; choose one without any.

Biased while clones are frozen, against the gradient of the return by all turns: it is that of roots' turns alone.
From then on it is the scheme inside. Degenerate case: `steps: 0` is the scheme inside.
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
