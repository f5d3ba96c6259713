"""`salt` averages the advantages of equal steps in equal states within a group.

Source: SALT (Li et al., arXiv 2510.20022), trajectories as a graph with shared steps. In the paper a state is that of a
text environment. Here a state is the past of an agent: its prompts, replies and actions. An action is the effect of a
turn in the game. Details: docs/methods.md.

    A_t = mean of A_u over the turns u of the group's episodes with (agent path, state, action) of t

Expected effect: steps that right and wrong episodes share get less credit, and accuracy rises in fewer steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Count
from selfcest_env.types import Outcome, TurnKey
from selfcest_training.credit import checks
from selfcest_training.credit.base import Advantage, Credit, Promise, ReplayRecords
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class SaltOptions(WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        history: number of last blocks of an agent's context that are its state; `null`: all of its past.
        thoughts: whether the text of a turn is part of its action.
    """

    history: Annotated[Count | None, "null: all of the past"] = None
    thoughts: bool = False


class Salt(WrapperScheme):
    """Averages the credit of another scheme, by default `grpo`, over equal steps."""

    name: ClassVar[str] = "salt"
    formula: ClassVar[str] = "as `scheme`, averaged over episodes that took the same action in the same state"
    source: ClassVar[str] = "SALT, Li et al. 2025, arXiv 2510.20022"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = SaltOptions
    options: SaltOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        keys_by_step: dict[object, list[TurnKey]] = {}
        num_steps = 0
        for episode in group.episodes:
            for agent in episode.agents:
                for turn, step in enumerate(self._identify_steps(episode, agent)):
                    key = TurnKey(episode.episode_id, agent.agent_id, turn)
                    # A turn with an advantage per token stays as it is.
                    if isinstance(credit.advantage.get(key), float):
                        keys_by_step.setdefault(step, []).append(key)
                        num_steps += 1
        advantage: dict[TurnKey, Advantage] = dict(credit.advantage)
        num_shared = 0
        for keys in keys_by_step.values():
            if len(keys) > 1:
                mean = float(np.mean([credit.advantage[key] for key in keys]))
                advantage.update(dict.fromkeys(keys, mean))
                num_shared += len(keys)
        diagnostics = {**credit.diagnostics, "shared_steps": num_shared / max(1, num_steps)}
        return replace(credit, advantage=advantage, diagnostics=diagnostics)

    def _identify_steps(self, episode: EpisodeRecord, agent: AgentRecord) -> list[object]:
        """Return a hashable value for each turn of an agent; equal values are the same step."""
        # Alternates between the block that the agent was shown before a turn and the action of the turn.
        context: list[object] = []
        steps: list[object] = []
        for index, turn in enumerate(agent.turns):
            # The replies are added to the prompt ids, because a policy of texts has no ids.
            context.append((turn.generation.prompt_ids, *_get_replies(episode, agent, index)))
            action = _describe_action(episode, agent, index)
            if self.options.thoughts:
                action = (*action, turn.generation.text, turn.generation.token_ids)
            # The last entry is a block, so every second entry from the end is one. A limited history has no actions.
            state = context if self.options.history is None else context[-2 * self.options.history + 1 :: 2]
            steps.append((agent.agent_id, agent.objective, agent.shared_context, tuple(state), action))
            context.append(action)
        return steps


def _describe_action(episode: EpisodeRecord, agent: AgentRecord, index: int) -> tuple[object, ...]:
    """Return the effect of a turn: outcome, calls, refusals, answer and documents."""
    facts = agent.turns[index].facts
    children = [episode.by_id[child] for child in facts.children]
    requests = tuple((clone.objective, clone.shared_context) for clone in children)
    answer = agent.reply if facts.outcome is Outcome.ANSWERED else None
    documents: tuple[object, ...] = ()
    if facts.outcome is Outcome.READ:
        # The documents that were read stand in the prompt of the next turn, if there is one.
        documents = tuple(turn.generation.prompt_ids for turn in agent.turns[index + 1 : index + 2])
    return facts.outcome, facts.fault, requests, tuple(facts.refused.items()), answer, documents


def _get_replies(episode: EpisodeRecord, agent: AgentRecord, index: int) -> tuple[str | None, ...]:
    """Return the replies of the clones that the turn before called."""
    children = agent.turns[index - 1].facts.children if index else ()
    return tuple(episode.by_id[child].reply for child in children)
