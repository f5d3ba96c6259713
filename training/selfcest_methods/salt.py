"""`salt`: where episodes of a group took the same step in the same state, its advantage is the mean of theirs.

    A_t = mean of A_u over the turns u of the group's episodes with (agent path, state, action) of t

A is that of the scheme `scheme`. The state is all that the agent has been shown and has done so far (of what it was
shown the last `history` blocks, if that is set), the action what a turn came to: the objectives and keys of its call,
the keys it read, the answer it gave, the fault. What it thought by the way is no part of either, so two turns that
lead to one action by different words are one step.

Source: SALT (Li et al. 2025, arXiv 2510.20022): the trajectories of a prompt as a graph, in which shared steps have
their advantages averaged and distinct ones keep their own. Open there for us: how much of the past makes two states
equal (`history` null, all of it, is the strictest), and what of a generation is the action (what the game made of
it). In a tree the nodes carry the agent's path, so that a clone is compared with the same clone of other episodes.
Clones of one episode are never averaged with one another.

Bias: with `thoughts: true` a step is the text itself, and with all of the past two such turns have the same
log-probs: averaging moves credit between equal gradients and changes nothing, on policy and with the constant
denominator. So all that SALT changes it changes by merging what is not the same: it takes credit from the words
between the steps, which is a bias where later turns heed those words (they stand in the context), and less noise
where they do not. Hence the promise; it is that of the scheme inside at best. Degenerate cases: no step in common is
the scheme inside. A turn with an advantage per token, or one that a replay played, is left as it is.
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
