"""A tabular language model: one row of logits per context, so that its exact gradient can be computed.

The policy samples id by id as an engine does, and stops where its token grant ends. In each context a short menu lists
the generations that it may write. A row has several ids where two generations diverge; an id without an alternative has
probability 1.
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
    """The ids that can follow one context, in ascending order, and their logits, [V]."""

    ids: Ids
    logits: Floats

    @property
    def logprobs(self) -> Floats:
        """Log-softmax of the logits, [V]."""
        shifted = self.logits - self.logits.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def seeded_logit(name: str, draw: int, spread: float = 0.8) -> Callable[[Ids, int], float]:
    """Return a function that draws the logit of an id after a context from a normal distribution.

    Args:
        name: name of the table, which keys the draws.
        draw: number of the draw, for another table of the same name.
        spread: standard deviation of the logits.
    """

    def logit(context: Ids, token: int) -> float:
        # The seed holds the whole context, so a logit does not depend on the order in which rows are opened.
        rng = np.random.default_rng(stream_seed("logit", name, draw, *context, "id", token))
        return spread * float(rng.standard_normal())

    return logit


@dataclass
class LogitTable:
    """The logits of a tabular policy, with a row for each context that the game has reached so far.

    Attributes:
        codec: encodes observation blocks and menus as ids.
        menu: the generations that an agent may write, which must be a function of its context. Each ends in a stop id.
        logit: the logit of an id after a context, called once when the row is opened.
        rows: the opened rows by context.
    """

    codec: Codec
    menu: Menu
    logit: Callable[[Ids, int], float]
    rows: dict[Ids, LogitRow] = field(default_factory=dict)
    _menus: dict[Ids, tuple[str, ...]] = field(default_factory=dict)

    def open_rows(self, context: Ids, observation: Observation) -> None:
        """Add the rows of every generation that may follow this context.

        Raises:
            PolicyError: the menu is empty, or the same context had another menu before.
        """
        menu = tuple(self.menu(observation))
        if not menu:
            raise PolicyError(f"the menu of {observation.agent_id} is empty; expected at least one generation")
        earlier_menu = self._menus.setdefault(context, menu)
        if earlier_menu != menu:
            raise PolicyError(
                f"the menu of {observation.agent_id} is {menu}, but was {earlier_menu} in the same context; expected a "
                "function of the context only"
            )
        if context in self.rows:
            return
        next_ids: dict[Ids, set[int]] = {}
        for text in menu:
            ids = self.codec.encode_scripted(text)
            for position, token in enumerate(ids):
                next_ids.setdefault((*context, *ids[:position]), set()).add(token)
        for prefix, tokens in next_ids.items():
            ids = tuple(sorted(tokens))
            # A row of one id has no parameter, because its probability is 1 whatever the logit.
            logits = [self.logit(prefix, token) if len(ids) > 1 else 0.0 for token in ids]
            self.rows[prefix] = LogitRow(ids, np.array(logits))


class NoiseSource(Protocol):
    """The source of a policy's random draws."""

    def pick(self, seed: int, position: int, probabilities: Floats) -> int:
        """Return an index that is drawn by these probabilities at one position of the stream with this seed."""
        ...


class SeededNoise:
    """Pseudo-random draws by inverting the cumulative distribution, as the engines draw."""

    def pick(self, seed: int, position: int, probabilities: Floats) -> int:
        cumulative = np.cumsum(probabilities)
        # The last sum can differ from 1 by rounding.
        draw = _uniforms(seed)[position] * cumulative[-1]
        return min(int(np.searchsorted(cumulative, draw, side="right")), len(probabilities) - 1)


MAX_TURN_IDS = 64  # limit of one generation in the games here, which write much less


@lru_cache(maxsize=4096)
def _uniforms(seed: int) -> Floats:
    return uniform_stream(seed, MAX_TURN_IDS)


class TabularPolicy:
    """A policy that samples from a table; the interface is `selfcest_agents.policy.Policy`.

    Args:
        table: the logits.
        noise: the source of the draws.
    """

    def __init__(self, table: LogitTable, noise: NoiseSource) -> None:
        self._table = table
        self._noise = noise
        self._finished: list[tuple[TurnKey, Generation]] = []

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            self._finished.append((request.key, self._generate(request)))

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        finished = self._finished
        self._finished = []
        return finished

    def _generate(self, request: PolicyRequest) -> Generation:
        observation = request.observation
        block = self._table.codec.encode(observation.block, observation.boundary)
        history: list[int] = []
        for turn in request.history:
            history += [*turn.prompt_ids, *turn.token_ids]
        context = (*history, *block)
        self._table.open_rows(context, observation)
        ids: list[int] = []
        logprobs: list[float] = []
        max_new_ids = MAX_TURN_IDS if observation.max_new_tokens is None else observation.max_new_tokens
        # No row follows a stop id. A row that is still open when the grant ends means that the generation was cut.
        while (row := self._table.rows.get((*context, *ids))) is not None and len(ids) < max_new_ids:
            row_logprobs = row.logprobs
            # A certain id draws nothing, so that enumeration does not branch there.
            chosen = self._noise.pick(request.seed, len(ids), np.exp(row_logprobs)) if len(row.ids) > 1 else 0
            logprobs.append(float(row_logprobs[chosen]))
            ids.append(row.ids[chosen])
        return Generation(
            text=self._table.codec.decode(ids),
            finish_reason=FinishReason.STOP if row is None else FinishReason.LENGTH,
            prompt_ids=block,
            token_ids=tuple(ids),
            behavior_logprobs=tuple(logprobs),
        )
