"""What credit may look at in the policy: hidden states and entropies of an episode's turns, by forward passes alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import TurnKey
from selfcest_training.credit import Credit, Internal, TurnInternals
from selfcest_training.learner.batch import Sample, agent_sample
from selfcest_training.learner.update import AnyLearner, Reading

_NOTHING = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class _Context:
    """One agent's context with every generated token marked, and where its turns begin and end in it."""

    sample: Sample
    spans: Mapping[TurnKey, tuple[int, int]]

    def ends(self, pad_id: int) -> Sample:
        """Marked are the tokens that follow those which the states are wanted of; a pad follows the last."""
        marks = np.zeros(len(self.sample) + 1, dtype=bool)
        marks[[place for span in self.spans.values() for place in span]] = True
        zeros = np.zeros(len(marks), dtype=np.float32)
        return replace(
            self.sample,
            token_ids=np.append(self.sample.token_ids, pad_id),
            loss_mask=marks,
            behavior_logprobs=zeros,
            advantages=zeros,
            temperature=zeros + 1,
        )


def look_into(
    learner: AnyLearner, groups: Sequence[EpisodeGroup], wanted: Collection[Internal]
) -> tuple[dict[TurnKey, TurnInternals], int]:
    """What is wanted of every turn of the groups' episodes, and how many ids were computed for it.

    Raises `ConfigError` for a record without token ids.
    """
    contexts = [
        _context(episode.episode_id, agent)
        for group in groups
        for episode in group.episodes
        for agent in episode.agents
        if agent.turns
    ]
    found = {key: TurnInternals(*(_NOTHING,) * 4) for context in contexts for key in context.spans}
    computed = 0
    if Internal.HIDDEN in wanted:
        states, ids = learner.read([context.ends(learner.pad_id) for context in contexts], Reading.HIDDEN)
        computed += ids
        for context, own in zip(contexts, states, strict=True):
            marked = sorted({place for span in context.spans.values() for place in span})
            places = {place: row for row, place in enumerate(marked)}
            for key, (start, end) in context.spans.items():
                found[key] = replace(found[key], before=own[places[start]], after=own[places[end]])
    if Internal.ENTROPY in wanted:
        read, ids = learner.read([context.sample for context in contexts], Reading.ENTROPY)
        computed += ids
        for context, (logprobs, entropies) in zip(contexts, read, strict=True):
            for key, (start, end) in context.spans.items():
                tokens = {"logprobs": logprobs[start:end], "entropies": entropies[start:end]}
                found[key] = replace(found[key], **tokens)
    return found, computed


def _context(episode_id: str, agent: AgentRecord) -> _Context:
    spans, position = {}, 0
    for index, turn in enumerate(agent.turns):
        start = position + len(turn.generation.prompt_ids)
        position = start + len(turn.generation.token_ids)
        spans[TurnKey(episode_id, agent.agent_id, index)] = start, position
    sample = agent_sample(episode_id, agent, Credit(dict.fromkeys(spans, 0.0)), 1.0)
    assert sample is not None, "each of its turns is marked"
    return _Context(sample, spans)
