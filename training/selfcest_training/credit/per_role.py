"""`per_role`: one scheme for roots and another for clones; a role without a scheme is frozen.

    A_root from the scheme `roots`, A_clone from the scheme `clones`;   a frozen role's turns are excluded

Source: role-wise training as in arXiv 2602.13262, where root and clones share weights and may still be credited apart.
With two unbiased schemes the sum is unbiased: every turn keeps a baseline that does not depend on it. With a frozen
role it is the gradient through the other role's turns alone (with shared weights the frozen role's behaviour still
moves). It promises nothing by itself. Degenerate case: both roles frozen is a config error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import Configured, PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.structure import Checked
from selfcest_env.types import ROOT, Role, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Promise, Replayed, Shapes
from selfcest_training.credit.registry import make_assigner, require_pure


@dataclass(frozen=True)
class PerRoleOptions(Checked):
    roots: PlugIn | None = None
    clones: PlugIn | None = None


class PerRole(Configured, CreditAssigner):
    """Options: `roots` and `clones`, each `{name, options}` or null (default) for frozen."""

    name: ClassVar[str] = "per_role"
    formula: ClassVar[str] = "root: A of the scheme `roots`; clone: A of the scheme `clones`; null: excluded"
    source: ClassVar[str] = "a combination of the others"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = PerRoleOptions
    options: PerRoleOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        chosen = {Role.ROOT: self.options.roots, Role.CLONE: self.options.clones}
        # The schemes of the roles that train.
        self._parts: Mapping[Role, CreditAssigner] = {
            role: make_assigner(part.name, part.options, where=f"{role}s.options")
            for role, part in chosen.items()
            if part is not None
        }
        for role, scheme in self._parts.items():
            require_pure(scheme, f"{role}s")
        if not self._parts:
            raise ConfigError("roots and clones are both null, so nobody would train; name a scheme for one of them")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        asked = (replay for part in self._parts.values() for replay in checks.ask(part, group))
        return list(dict.fromkeys(asked))

    def check_constant(self, loss_denominator_tokens: float) -> None:
        for part in self._parts.values():
            part.check_constant(loss_denominator_tokens)

    def more_replays(self, episode: EpisodeRecord, shapes: Shapes) -> Sequence[Replay]:
        asked = (replay for part in self._parts.values() for replay in part.more_replays(episode, shapes))
        return list(dict.fromkeys(asked))

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage: dict[TurnKey, Advantage] = {}
        weight: dict[TurnKey, float] = {}
        diagnostics: dict[str, float] = {}
        for role, part in self._parts.items():
            credit = checks.assign(part, group, replayed)
            advantage.update((key, value) for key, value in credit.advantage.items() if _role(key) is role)
            weight.update((key, value) for key, value in credit.weight.items() if _role(key) is role)
            diagnostics.update((f"{role}/{name}", value) for name, value in credit.diagnostics.items())
        every = (key for episode in group.episodes for key, _ in episode.turns())
        return Credit(advantage, frozenset(key for key in every if key not in advantage), diagnostics, weight)


def _role(key: TurnKey) -> Role:
    return Role.ROOT if key.agent_id == ROOT else Role.CLONE
