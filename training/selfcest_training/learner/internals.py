"""Hidden states, log-probs and entropies of an episode's turns for credit schemes, by forward passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import TurnKey
from selfcest_training.credit import Credit, Internal, TurnInternals
from selfcest_training.learner.batch import Sample, build_sample, find_turn_spans
from selfcest_training.learner.update import ForwardOutput, LearnerProtocol

_EMPTY = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class _Context:
    """One agent's context with every generated token marked as trained, and the span of each turn in it."""

    sample: Sample
    spans: Mapping[TurnKey, slice]

    @property
    def boundaries(self) -> list[int]:
        """Positions at which turns begin and end, sorted, each once."""
        return sorted(set(chain.from_iterable((span.start, span.stop) for span in self.spans.values())))

    def boundary_sample(self, pad_id: int) -> Sample:
        """Return a sample whose hidden states are those at the boundaries of turns.

        A hidden state is computed at the token *before* a trained token, so the tokens at the boundaries are marked. A
        pad is appended, since the last turn ends at the last token.
        """
        marks = np.zeros(len(self.sample) + 1, dtype=bool)
        marks[self.boundaries] = True
        zeros = np.zeros(len(marks), dtype=np.float32)
        return replace(
            self.sample,
            token_ids=np.append(self.sample.token_ids, pad_id),
            loss_mask=marks,
            behavior_logprobs=zeros,
            advantages=zeros,
            temperature=zeros + 1,
        )


def compute_internals(
    learner: LearnerProtocol, groups: Sequence[EpisodeGroup], kinds: Collection[Internal]
) -> tuple[dict[TurnKey, TurnInternals], int]:
    """Compute internals of the policy for every turn of the groups' episodes.

    Args:
        learner: computes the forward passes.
        groups: the groups.
        kinds: hidden states, entropies, or both; the other fields of `TurnInternals` stay empty.

    Returns:
        Internals by turn, and the number of ids that went through the model.

    Raises:
        ConfigError: a record has no token ids.
    """
    contexts: list[_Context] = []
    for group in groups:
        for episode in group.episodes:
            contexts += [_context_of(episode.episode_id, agent) for agent in episode.agents if agent.turns]
    internals: dict[TurnKey, TurnInternals] = {}
    for context in contexts:
        internals.update(dict.fromkeys(context.spans, TurnInternals(_EMPTY, _EMPTY, _EMPTY, _EMPTY)))
    num_computed = 0
    if Internal.HIDDEN in kinds:
        samples = [context.boundary_sample(learner.pad_id) for context in contexts]
        hidden, num_tokens = learner.compute(samples, ForwardOutput.HIDDEN)
        num_computed += num_tokens
        for context, states in zip(contexts, hidden, strict=True):
            row_of = {position: row for row, position in enumerate(context.boundaries)}
            for key, span in context.spans.items():
                before = states[row_of[span.start]]
                after = states[row_of[span.stop]]
                internals[key] = replace(internals[key], before=before, after=after)
    if Internal.ENTROPY in kinds:
        outputs, num_tokens = learner.compute([context.sample for context in contexts], ForwardOutput.ENTROPY)
        num_computed += num_tokens
        for context, (logprobs, entropies) in zip(contexts, outputs, strict=True):
            for key, span in context.spans.items():
                internals[key] = replace(internals[key], logprobs=logprobs[span], entropies=entropies[span])
    return internals, num_computed


def _context_of(episode_id: str, agent: AgentRecord) -> _Context:
    spans = find_turn_spans(episode_id, agent)
    sample = build_sample(episode_id, agent, Credit(dict.fromkeys(spans, 0.0)), 1.0)
    assert sample is not None, "each of its turns is marked"
    return _Context(sample, spans)
