"""`salt` averages the advantages of equal steps in equal states within a group, after SALT (Li et al., arXiv
2510.20022). If it works, steps that right and wrong episodes share get less credit, and accuracy rises in fewer
steps.

    A_t = mean of A_u over the turns u of the group's episodes with (agent path, state, action) of t

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Count
from selfcest_env.types import Outcome, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Credit, Promise, Replayed
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class SaltOptions(WrapperOptions):
    history: Annotated[Count | None, "null: all of the past"] = None
    thoughts: bool = False


class Salt(WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `grpo`; `history` (default null: all of the past);
    `thoughts` (default false)."""

    name: ClassVar[str] = "salt"
    formula: ClassVar[str] = "as `scheme`, averaged over episodes that took the same action in the same state"
    source: ClassVar[str] = "SALT, Li et al. 2025, arXiv 2510.20022"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = SaltOptions
    options: SaltOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        steps: dict[object, list[TurnKey]] = {}
        for episode in group.episodes:
            for agent in episode.agents:
                for turn, step in enumerate(self._steps(episode, agent)):
                    key = TurnKey(episode.episode_id, agent.agent_id, turn)
                    if isinstance(credit.advantage.get(key), float):
                        steps.setdefault(step, []).append(key)
        shared = [keys for keys in steps.values() if len(keys) > 1]
        means = {key: float(np.mean([credit.advantage[key] for key in keys])) for keys in shared for key in keys}
        share = len(means) / max(1, sum(map(len, steps.values())))
        diagnostics = {**credit.diagnostics, "shared_steps": share}
        return replace(credit, advantage={**credit.advantage, **means}, diagnostics=diagnostics)

    def _steps(self, episode: EpisodeRecord, agent: AgentRecord) -> list[object]:
        """Per turn of an agent what names the step."""
        seen: tuple[object, ...] = ()
        found: list[object] = []
        for turn in agent.turns:
            generation = turn.generation
            seen = (*seen, (generation.prompt_ids, *_replies(episode, agent, len(found))))
            action = (
                *_action(episode, agent, len(found)),
                *((generation.text, generation.token_ids) * self.options.thoughts),
            )
            state = seen if self.options.history is None else seen[-2 * self.options.history + 1 :: 2]
            found.append((agent.agent_id, agent.objective, agent.shared_context, state, action))
            seen = (*seen, action)
        return found


def _action(episode: EpisodeRecord, agent: AgentRecord, index: int) -> tuple[object, ...]:
    """What a turn came to."""
    facts = agent.turns[index].facts
    asked = tuple((episode.by_id[child].objective, episode.by_id[child].shared_context) for child in facts.children)
    last = agent.reply if facts.outcome is Outcome.ANSWERED else None
    rest = agent.turns[index + 1 : index + 2] if facts.outcome is Outcome.READ else ()
    read = tuple(turn.generation.prompt_ids for turn in rest)
    return facts.outcome, facts.fault, asked, tuple(facts.refused.items()), last, read


def _replies(episode: EpisodeRecord, agent: AgentRecord, index: int) -> tuple[str | None, ...]:
    """What the clones of the turn before replied, which a policy of text has no ids of."""
    children = agent.turns[index - 1].facts.children if index else ()
    return tuple(episode.by_id[child].reply for child in children)
