"""`gated`: the credit of another scheme, without turns of failed clones that would be reinforced.

    A from the scheme `scheme`;   a failed clone's turn is excluded if A >= 0, and keeps a negative advantage

A clone has failed if it did not answer, or if one of its turns was malformed. With one advantage per episode, a failed
clone of a good episode would be reinforced for its failure. In a bad episode it keeps the same negative advantage as
its siblings. `sides: both` always excludes a failed clone, as the rollout gating of Figure 2 in arXiv 2602.13262. With
an advantage per token their mean decides.

Biased by construction, but never with the wrong sign. Degenerate case: without failed clones it is the scheme itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import AgentId, Outcome, Role, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, ReplayRecords
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class GatedOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        sides: advantages at which a failed clone is excluded: only `positive` ones, or `both` signs.
    """

    sides: Literal["positive", "both"] = "positive"


class Gated(WrapperScheme):
    """Takes the credit of another scheme, by default `grpo`, without turns of failed clones."""

    name: ClassVar[str] = "gated"
    formula: ClassVar[str] = "as `scheme`; a failed clone is excluded when A >= 0 (sides: both: always)"
    source: ClassVar[str] = "rollout gating of arXiv 2602.13262, made safe in sign"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = GatedOptions
    options: GatedOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        failed_clones: set[tuple[str, AgentId]] = set()
        for record in (*group.episodes, *replayed.values()):
            for agent in record.agents:
                if agent.role is Role.CLONE and has_failed(agent):
                    failed_clones.add((record.episode_id, agent.agent_id))
        advantage: dict[TurnKey, Advantage] = {}
        gated: set[TurnKey] = set()
        for key, value in credit.advantage.items():
            is_failed = (key.episode_id, key.agent_id) in failed_clones
            if is_failed and (self.options.sides == "both" or np.mean(value) >= 0):
                gated.add(key)
            else:
                advantage[key] = value
        # Turns of replays without an advantage do not train; only turns of the episodes themselves can be excluded.
        episode_ids = {episode.episode_id for episode in group.episodes}
        excluded = {key for key in gated if key.episode_id in episode_ids}
        # Every agent but the root is a clone.
        num_clones = sum(len(episode.agents) - 1 for episode in group.episodes)
        num_gated = len({(key.episode_id, key.agent_id) for key in excluded})
        diagnostics = {**credit.diagnostics, "gated_share": num_gated / num_clones if num_clones else 0.0}
        weight = {key: value for key, value in credit.weight.items() if key in advantage}
        return Credit(advantage, credit.excluded | excluded, diagnostics, weight)


def has_failed(agent: AgentRecord) -> bool:
    """Whether gating applies to a clone: its parent received no answer, or one of its turns was malformed."""
    return agent.failed or any(turn.facts.outcome is Outcome.MALFORMED for turn in agent.turns)
