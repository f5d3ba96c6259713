"""`gated_paper`: the clone credit of the authors' released code (arXiv 2602.13262), for parity, defects included.

    A_c = A_root * clamp(r_c / (R_root + sign(R_root) 1e-8), -1.5, 1.5)
    A_root = (R - mean R) / (std R + 1e-6), std with n - 1

The clone's reward r_c is the root's score (for `domain: math` the score / 2.5). A malformed clone, which never answered
and generated more than `malformed_tokens`, has reward 0 (for math the smaller of 0 and the score). The score is the
root's reward *before* the terms in `late_terms`, which the authors subtract after they set the clone rewards: a penalty
per repaired call in their code, `malformed` here. A late term that the run's reward lacks has no effect.

The defects of that code are kept; docs/credit.md lists them. Biased. A group of one is a config error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Checked, Size
from selfcest_env.types import Outcome, Role, TurnKey
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Promise, ReplayRecords, group_advantages

_MAX_RATIO = 1.5
_EPSILON = 1e-8
_MATH_SCALE = 2.5


@dataclass(frozen=True)
class GatedPaper(CreditAssigner, Checked):
    """Credits clones by the released code of arXiv 2602.13262, defects included.

    Attributes:
        domain: domain of the released reward: `arithmetic`, also for long context, or `math`, where the reward of
            clones is the score / 2.5.
        malformed_tokens: number of tokens above which a clone without an answer is malformed.
        late_terms: reward terms that do not enter the rewards of clones.
    """

    name: ClassVar[str] = "gated_paper"
    formula: ClassVar[str] = "clone: A = A_root clamp(r_c / R_root, -1.5, 1.5); root: grpo without floor"
    source: ClassVar[str] = "released code of arXiv 2602.13262"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    domain: Literal["arithmetic", "math"] = "arithmetic"
    malformed_tokens: Size = 192
    late_terms: tuple[str, ...] = ("malformed",)

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        roots = group_advantages(group, scale=True, std_floor=0.0, epsilon=1e-6)
        advantage: dict[TurnKey, Advantage] = {}
        num_clones = 0
        num_gated = 0
        for episode, root in zip(group.episodes, roots, strict=True):
            for agent in episode.agents:
                ratio = self._ratio(episode, agent) if agent.role is Role.CLONE else 1.0
                num_clones += agent.role is Role.CLONE
                num_gated += ratio == 0.0
                for turn in range(len(agent.turns)):
                    advantage[TurnKey(episode.episode_id, agent.agent_id, turn)] = root * ratio
        return Credit(advantage, diagnostics={"gated_share": num_gated / max(1, num_clones)})

    def _ratio(self, episode: EpisodeRecord, clone: AgentRecord) -> float:
        root = episode.team_return
        ratio = self._clone_reward(episode, clone) / (root + math.copysign(_EPSILON, root))
        return max(-_MAX_RATIO, min(_MAX_RATIO, ratio))

    def _clone_reward(self, episode: EpisodeRecord, clone: AgentRecord) -> float:
        assert episode.reward_terms is not None
        score = sum(
            episode.weights.get(term, 1.0) * value
            for term, value in episode.reward_terms.items()
            if term not in self.late_terms
        )
        answered = any(turn.facts.outcome is Outcome.ANSWERED for turn in clone.turns)
        malformed = not answered and clone.generated_tokens > self.malformed_tokens
        if self.domain == "math":
            return min(0.0, score) if malformed else score / _MATH_SCALE
        return 0.0 if malformed else score
