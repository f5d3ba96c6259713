"""Hidden states, log-probs and entropies of a tabular policy, for credit schemes that read a model's internals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.seeding import stream_seed
from selfcest_env.types import TurnKey
from selfcest_lab.tabular import Ids, LogitRow, LogitTable
from selfcest_training.credit import TurnInternals
from selfcest_training.credit.base import Floats

# The width must exceed the number of contexts in a game that begin or end a turn. Then random states are linearly
# independent, so a linear critic can represent every function of the context.
_STATE_SIZE = 256


def compute_internals(groups: Sequence[EpisodeGroup], table: LogitTable) -> dict[TurnKey, TurnInternals]:
    """Compute what a scheme reads of the policy at every turn.

    Args:
        groups: episodes that were played by this table.
        table: the policy.

    Returns:
        Per turn the states before and after it, each a fixed random vector per context, and per generated id the
        log-prob and the entropy of its row in nats.
    """
    internals: dict[TurnKey, TurnInternals] = {}
    for group in groups:
        for episode in group.episodes:
            for agent in episode.agents:
                context: Ids = ()
                for index, turn in enumerate(agent.turns):
                    before = context + tuple(turn.generation.prompt_ids)
                    ids = tuple(turn.generation.token_ids)
                    context = before + ids
                    entropies = [_entropy(table.rows.get((*before, *ids[:i]))) for i in range(len(ids))]
                    internals[TurnKey(episode.episode_id, agent.agent_id, index)] = TurnInternals(
                        _random_state(before),
                        _random_state(context),
                        np.array(turn.generation.behavior_logprobs, dtype=np.float32),
                        np.array(entropies, dtype=np.float32),
                    )
    return internals


def _entropy(row: LogitRow | None) -> float:
    # Episodes of another policy can hold contexts that this table has never opened.
    return 0.0 if row is None else -float(np.exp(row.logprobs) @ row.logprobs)


def _random_state(context: Ids) -> Floats:
    rng = np.random.default_rng(stream_seed("state", "lab", 0, *context))
    return rng.standard_normal(_STATE_SIZE, dtype=np.float32)
