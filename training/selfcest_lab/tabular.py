"""A tabular language model: one row of logits per context, so that everything about it can be computed exactly.

It is a policy like any other. Its contexts are ids, it samples id by id, a generation is cut where its grant ends, and
the learner's log-probs come from the same rows. What it may write in a context is a short menu of generations; a row
stands wherever two of them part, and an id that has no rival has probability 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from selfcest_agents.codec import Codec
from selfcest_agents.policy import PolicyRequest
from selfcest_agents.transformers.sampling import uniform_stream
from selfcest_env.errors import PolicyError
from selfcest_env.record import Generation
from selfcest_env.seeding import stream_seed
from selfcest_env.types import FinishReason, TurnKey
from selfcest_env.views import Observation

Ids = tuple[int, ...]
Menu = Callable[[Observation], Sequence[str]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LogitRow:
    """What can follow one context: the next ids and their logits."""

    ids: Ids
    logits: Floats

    @property
    def logprobs(self) -> Floats:
        shifted = self.logits - self.logits.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def seeded_logit(name: str, draw: int, spread: float = 0.8) -> Callable[[Ids, int], float]:
    """Logits from a normal, keyed by table, draw, context and id: the same in whatever order rows are met."""

    def logit(context: Ids, token: int) -> float:
        rng = np.random.default_rng(stream_seed("logit", name, draw, *context, "id", token))
        return spread * float(rng.standard_normal())

    return logit


@dataclass
class Table:
    """Rows by context, opened when the game first gets there.

    Attributes:
        codec: turns blocks and menus to ids.
        menu: generations that an agent may write; a function of what its context shows. Each ends by a stop id.
        logit: the logit of an id after a context, when its row is opened.
    """

    codec: Codec
    menu: Menu
    logit: Callable[[Ids, int], float]
    rows: dict[Ids, LogitRow] = field(default_factory=dict)
    _menus: dict[Ids, tuple[str, ...]] = field(default_factory=dict)

    def open(self, context: Ids, observation: Observation) -> None:
        """Make the rows of every generation that may follow this context."""
        menu = tuple(self.menu(observation))
        if self._menus.setdefault(context, menu) != menu or not menu:
            raise PolicyError(f"the menu of {observation.agent_id} is {menu}, and {self._menus[context]} elsewhere")
        if context in self.rows:
            return
        followers: dict[Ids, set[int]] = {}
        for text in menu:
            ids = self.codec.encode_own(text)
            for position, token in enumerate(ids):
                followers.setdefault((*context, *ids[:position]), set()).add(token)
        for prefix, tokens in followers.items():
            ids = tuple(sorted(tokens))
            logits = [self.logit(prefix, token) if len(ids) > 1 else 0.0 for token in ids]
            self.rows[prefix] = LogitRow(ids, np.array(logits))


class Noise(Protocol):
    """Where chance comes from: the draw at one position of the stream with this seed."""

    def pick(self, seed: int, position: int, probabilities: Floats) -> int: ...


class Streams:
    """Pseudo-random draws by inverting the cumulative sum, as the engines draw."""

    def pick(self, seed: int, position: int, probabilities: Floats) -> int:
        cumulative = np.cumsum(probabilities)
        draw = _uniforms(seed)[position] * cumulative[-1]
        return min(int(np.searchsorted(cumulative, draw, side="right")), len(probabilities) - 1)


LONGEST_TURN = 64  # ids of one generation; games are smaller


@lru_cache(maxsize=4096)
def _uniforms(seed: int) -> Floats:
    return uniform_stream(seed, LONGEST_TURN)


class TabularPolicy:
    """Plays a table; see `selfcest_agents.policy.Policy`."""

    def __init__(self, table: Table, noise: Noise) -> None:
        self._table, self._noise = table, noise
        self._finished: list[tuple[TurnKey, Generation]] = []

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._finished += [(request.key, self._write(request)) for request in requests]

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        finished, self._finished = self._finished, []
        return finished

    def _write(self, request: PolicyRequest) -> Generation:
        observation, rows = request.observation, self._table.rows
        block = self._table.codec.encode(observation.block, observation.boundary)
        past = tuple(i for turn in request.history for ids in (turn.prompt_ids, turn.token_ids) for i in ids)
        context = (*past, *block)
        self._table.open(context, observation)
        ids: list[int] = []
        logprobs: list[float] = []
        room = LONGEST_TURN if observation.max_new_tokens is None else observation.max_new_tokens
        while (row := rows.get((*context, *ids))) is not None and len(ids) < room:
            choices = row.logprobs
            chosen = self._noise.pick(request.seed, len(ids), np.exp(choices)) if len(row.ids) > 1 else 0
            logprobs.append(float(choices[chosen]))
            ids.append(row.ids[chosen])
        return Generation(
            text=self._table.codec.decode(ids),
            finish_reason=FinishReason.STOP if row is None else FinishReason.LENGTH,
            prompt_ids=block,
            token_ids=tuple(ids),
            behavior_logprobs=tuple(logprobs),
        )
