"""`rae` takes a moving average of a role's returns as the baseline of the role.

Source: role-conditioned advantage estimation of SPIRAL (arXiv 2506.24119, read in its released code at a02d0ed), and
prime-rl, `orchestrator/algo/rae.py` at 559b447. Both move the baseline after every trace of a role. Here all agents of
a role in an episode are credited before it moves, because clones have no order; in prime-rl it moves after each clone,
so with equal returns the advantage of the i-th one is 0.95^(i - 1) of the first one's. Details: docs/methods.md.

    A = R - b_role, b before the episode;   then for each agent of the role: b = decay b + (1 - decay) R

Expected effect: a role whose returns are always high gets no credit for their level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Below, Checked, NotNegative
from selfcest_env.types import Role, TurnKey
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Internals, Promise, ReplayRecords


@dataclass
class RoleBaselines(PlainState):
    """The moving average of the returns of each role."""

    root: float = 0.0
    clone: float = 0.0

    def of(self, role: Role) -> float:
        return self.root if role is Role.ROOT else self.clone

    def observe(self, episode: EpisodeRecord, decay: float) -> None:
        """Move the averages by the agents of one episode."""
        for agent in episode.agents:
            if not agent.turns:
                continue
            moved = decay * self.of(agent.role) + (1 - decay) * episode.team_return
            if agent.role is Role.ROOT:
                self.root = moved
            else:
                self.clone = moved


@dataclass(frozen=True)
class RaeOptions(Checked):
    """Options of `Rae`.

    Attributes:
        decay: weight of the earlier average when an agent's return is added.
    """

    decay: Annotated[NotNegative, Below(1)] = 0.95


class Rae(Stateful[RoleBaselines], CreditAssigner):
    """Credits every turn by the return less the moving average of its role."""

    name: ClassVar[str] = "rae"
    formula: ClassVar[str] = "A = R - moving average of R over earlier agents of the role"
    source: ClassVar[str] = "SPIRAL, arXiv 2506.24119; prime-rl, rae"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    Options = RaeOptions
    options: RaeOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        # Earlier episodes of the group count too: they are independent of what this one does.
        baselines = RoleBaselines(self.state.root, self.state.clone)
        advantage: dict[TurnKey, Advantage] = {}
        for episode in group.episodes:
            for key, _ in episode.turns():
                advantage[key] = episode.team_return - baselines.of(episode.by_id[key.agent_id].role)
            baselines.observe(episode, self.options.decay)
        return Credit(advantage)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        for group in groups:
            for episode in group.episodes:
                self.state.observe(episode, self.options.decay)

    def initial_state(self) -> RoleBaselines:
        return RoleBaselines()
