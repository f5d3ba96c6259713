"""What a scheme that looks into the policy sees of a tabular one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.seeding import stream_seed
from selfcest_env.types import TurnKey
from selfcest_lab.tabular import Ids, Table
from selfcest_training.credit import TurnInternals
from selfcest_training.credit.base import Floats

_SIZE = 256  # more than a game has contexts that end a turn or come before one


def internals_of(groups: Sequence[EpisodeGroup], table: Table) -> dict[TurnKey, TurnInternals]:
    """Of every turn: a vector of normal numbers for each context, which tells it from the others as one of a model does
    and makes every function of contexts linear; log-probs and entropies of its rows."""
    found = {}
    for group in groups:
        for episode in group.episodes:
            for agent in episode.agents:
                seen: Ids = ()
                for index, turn in enumerate(agent.turns):
                    seen += tuple(turn.generation.prompt_ids)
                    ids, first = tuple(turn.generation.token_ids), seen
                    seen += ids
                    rows = [table.rows.get((*first, *ids[:i])) for i in range(len(ids))]
                    entropies = [0.0 if row is None else -float(np.exp(row.logprobs) @ row.logprobs) for row in rows]
                    found[TurnKey(episode.episode_id, agent.agent_id, index)] = TurnInternals(
                        _state(first),
                        _state(seen),
                        np.array(turn.generation.behavior_logprobs, dtype=np.float32),
                        np.array(entropies, dtype=np.float32),
                    )
    return found


def _state(context: Ids) -> Floats:
    rng = np.random.default_rng(stream_seed("state", "lab", 0, *context))
    return rng.standard_normal(_SIZE, dtype=np.float32)
