"""`branches` credits turns against alternatives drawn in the same context, and trains on all of them.

Source: C3 (arXiv 2603.06859, read in its abstract and its released code at 6281858). In the paper two agents have fixed
roles. Here any clone has alternatives, also a clone that is born in an alternative, and so has each turn of the root.
Three things differ. C3 credits the first agent with the mean return over the alternatives below it; here the root gets
`rloo`, or alternatives of its own. The released code divides by the std of the siblings unless
`--no_advantage_std_norm` is set. Its default variant, `value_assisted`, has a learned critic as the baseline. Details:
docs/methods.md.

    A_i = R_i - mean_{j != i} R_j   for c's turns in the episode, i = 0, and in n replays that resample them,
                                    each with weight 1 / (n + 1)

A later turn of the root, after its first, is credited alone: its alternatives keep the turns before it and draw the
rest again. Where one of two draws calls one more clone and the other one answers, the credit is half of the difference
of their returns: the value of one more clone. Two draws of one text have opposite credit and cancel. (The first turn's
alternatives are the other episodes of the group: with `rloo` it has them without replays.)

Expected effect: a gradient of less variance than that of `coma` for the same replayed tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    ReplayRecords,
    TurnCounts,
    broadcast,
    leave_one_out,
    subtract_mean_of_others,
)
from selfcest_training.credit.chance import flip_coin
from selfcest_training.credit.counterfactual import select_clones


@dataclass(frozen=True)
class _CreditedClone:
    """A clone that is credited against alternatives.

    Attributes:
        record: episode, or alternative of its parent, in which the clone is born.
        agent_id: id of the clone.
        weight: sum of the weights of its draws.
    """

    record: EpisodeRecord
    agent_id: AgentId
    weight: float


@dataclass(frozen=True)
class Branches(CreditAssigner, Checked):
    """Credits turns against alternatives, and all other turns by `rloo`.

    Attributes:
        samples: n, the number of alternatives of a clone, or of a turn of the root.
        max_share: share of clones that have alternatives.
        root_share: share of the root's later turns that have alternatives of their own.
        nested: whether clones that are born in an alternative have alternatives too; it needs a `max_share` of 1.
    """

    name: ClassVar[str] = "branches"
    formula: ClassVar[str] = (
        "clone (root_share: turn of the root) and its n alternatives: A = R - mean R of the others, each with weight "
        "1 / (n + 1); else: rloo"
    )
    source: ClassVar[str] = "C3, arXiv 2603.06859"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    samples: Count = 1
    max_share: Share = 1.0
    root_share: Share = 0.0
    nested: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nested and self.max_share < 1:
            raise ConfigError(f"max_share is {self.max_share} and nested true; expected a max_share of 1 with nested")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        replays: list[Replay] = []
        for episode in group.episodes:
            for clone in select_clones(episode, self.max_share):
                replays += self._make_replays(episode.episode_id, clone.agent_id)
            for turn in self._select_root_turns(episode):
                replays += self._make_replays(episode.episode_id, ROOT, turn)
        return replays

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        """Return alternatives for the clones that are born in alternatives of their parent."""
        replays: list[Replay] = []
        if self.nested:
            for clone in select_clones(episode, self.max_share):
                for replay in self._make_replays(episode.episode_id, clone.agent_id):
                    for agent_id, num_turns in turn_counts[replay].items():
                        if agent_id.parent == clone.agent_id and num_turns:
                            replays += self._make_replays(str(replay), agent_id)
        return replays

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        weight: dict[TurnKey, float] = {}
        for clone in self._find_credited_clones(group, replayed):
            draws = [clone.record, *self._get_alternatives(clone.record, clone.agent_id, replayed)]
            values = subtract_mean_of_others([draw.team_return for draw in draws])
            for draw, value in zip(draws, values, strict=True):
                for key, _ in draw.turns():
                    if key.agent_id == clone.agent_id:
                        advantage[key] = value
                        weight[key] = clone.weight / len(draws)
        for episode in group.episodes:
            for turn in self._select_root_turns(episode):
                draws = [episode, *self._get_alternatives(episode, ROOT, replayed, turn)]
                values = subtract_mean_of_others([draw.team_return for draw in draws])
                for draw, value in zip(draws, values, strict=True):
                    # Later turns of an alternative are not trained: each has its credit in the episode only.
                    key = TurnKey(draw.episode_id, ROOT, turn)
                    advantage[key] = value
                    weight[key] = 1 / len(draws)
        return Credit(advantage, weight=weight)

    def _select_root_turns(self, episode: EpisodeRecord) -> list[int]:
        turns = range(1, len(episode.root.turns))
        return [turn for turn in turns if flip_coin(self.root_share, episode, ROOT, turn)]

    def _find_credited_clones(self, group: EpisodeGroup, replayed: ReplayRecords) -> Iterator[_CreditedClone]:
        # A clone that is born in one of several draws of its parent counts as often as this draw.
        nested_weight = 1 / (1 + self.samples) if self.nested else 1.0
        for episode in group.episodes:
            for clone in select_clones(episode, self.max_share):
                yield _CreditedClone(episode, clone.agent_id, 1.0 if clone.parent_id == ROOT else nested_weight)
                if self.nested:
                    for alternative in self._get_alternatives(episode, clone.agent_id, replayed):
                        for agent in alternative.agents:
                            if agent.parent_id == clone.agent_id and agent.turns:
                                yield _CreditedClone(alternative, agent.agent_id, nested_weight)

    def _get_alternatives(
        self, record: EpisodeRecord, agent: AgentId, replayed: ReplayRecords, turn: int = 0
    ) -> list[EpisodeRecord]:
        return [replayed[replay] for replay in self._make_replays(record.episode_id, agent, turn)]

    def _make_replays(self, record_id: str, agent: AgentId, turn: int = 0) -> list[Replay]:
        """Return the replays that resample an agent's turns from `turn` on, in an episode or in another replay."""
        change = {agent: Intervention.resample(turn)}
        return [Replay.of(record_id, change, sample) for sample in range(self.samples)]
