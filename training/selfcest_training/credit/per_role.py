"""`per_role`: one scheme for roots and another for clones; a role without a scheme is frozen.

    A_root from the scheme `roots`, A_clone from the scheme `clones`;   a frozen role's turns are excluded

Source: role-wise training as in arXiv 2602.13262, where root and clones share weights and may have different credit.
With two unbiased schemes the sum is unbiased: every turn has a baseline that does not depend on it. With a frozen role
the gradient goes through the other role's turns only; with shared weights the behaviour of the frozen role still
changes. It promises no more than bias. Degenerate case: both roles frozen is a config error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import Configured, PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.structure import Checked
from selfcest_env.types import ROOT, Role, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    Promise,
    ReplayRecords,
    TurnCounts,
    check_reads,
)
from selfcest_training.credit.registry import make_assigner, require_pure


@dataclass(frozen=True)
class PerRoleOptions(Checked):
    """Options.

    Attributes:
        roots: scheme of roots, with `name` and `options`; `null` excludes them.
        clones: scheme of clones, with `name` and `options`; `null` excludes them.
    """

    roots: PlugIn | None = None
    clones: PlugIn | None = None


class PerRole(Configured, CreditAssigner):
    """Takes the credit of roots from one scheme, and that of clones from another."""

    name: ClassVar[str] = "per_role"
    formula: ClassVar[str] = "root: A of the scheme `roots`; clone: A of the scheme `clones`; null: excluded"
    source: ClassVar[str] = "a combination of the others"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = PerRoleOptions
    options: PerRoleOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The schemes of the roles that train. A frozen role has none.
        self._schemes: dict[Role, CreditAssigner] = {}
        for role, plugin in ((Role.ROOT, self.options.roots), (Role.CLONE, self.options.clones)):
            if plugin is not None:
                self._schemes[role] = make_assigner(plugin.name, plugin.options, where=f"{role}s.options")
        for role, scheme in self._schemes.items():
            require_pure(scheme, f"{role}s")
        if not self._schemes:
            raise ConfigError("roots and clones are both null, so no turn is trained; name a scheme for one of them")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        replays: list[Replay] = []
        for scheme in self._schemes.values():
            replays += checks.request_replays(scheme, group)
        return list(dict.fromkeys(replays))

    def check_reward(self, reward: Reward) -> None:
        for scheme in self._schemes.values():
            check_reads(scheme, reward)

    def check_constant(self, loss_denominator_tokens: float | None) -> None:
        for scheme in self._schemes.values():
            scheme.check_constant(loss_denominator_tokens)

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        replays: list[Replay] = []
        for scheme in self._schemes.values():
            replays += scheme.more_replays(episode, turn_counts)
        return list(dict.fromkeys(replays))

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage: dict[TurnKey, Advantage] = {}
        weight: dict[TurnKey, float] = {}
        diagnostics: dict[str, float] = {}
        for role, scheme in self._schemes.items():
            credit = checks.assign(scheme, group, replayed)
            advantage.update((key, value) for key, value in credit.advantage.items() if _get_role(key) is role)
            weight.update((key, value) for key, value in credit.weight.items() if _get_role(key) is role)
            diagnostics.update((f"{role}/{name}", value) for name, value in credit.diagnostics.items())
        excluded: set[TurnKey] = set()
        for episode in group.episodes:
            excluded.update(key for key, _ in episode.turns() if key not in advantage)
        return Credit(advantage, frozenset(excluded), diagnostics, weight)


def _get_role(key: TurnKey) -> Role:
    return Role.ROOT if key.agent_id == ROOT else Role.CLONE
