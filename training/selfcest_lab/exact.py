"""Everything that can happen in a game, by its probability: trajectories, the value, and its exact gradient.

Chance enters a game only through the policy's draws. `outcomes` runs any play once for every way in which those draws
can fall, so what is enumerated is the real kernel, rollout and replay code, and not a copy of its rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch

from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.errors import ConfigError
from selfcest_env.record import AgentRecord, EpisodeRecord
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_lab.games import Game
from selfcest_lab.tabular import Floats, Ids, LogitRow, Table, TabularPolicy

T = TypeVar("T")
Drawn = Mapping[tuple[int, int], tuple[float, float]]
MAX_TRAJECTORIES = 2000


class Exhaustive:
    """Chance that follows a script: at each draw the script says which of the possible outcomes comes.

    The uniform behind a (seed, position) is one number, however often it is used: every draw narrows the interval that
    it lies in, and later draws from it are conditional on that. So shared streams are as dependent as in a real play.

    Args:
        drawn: what is known of some uniforms already.
        script: the outcome of each draw, as an index among the possible ones; draws beyond its end take the first.
    """

    def __init__(self, drawn: Drawn, script: list[int]) -> None:
        self.drawn = dict(drawn)
        self.probability = 1.0
        self._script, self._path = script, list[tuple[int, int]]()

    def pick(self, seed: int, position: int, probabilities: Floats) -> int:
        low, high = self.drawn.get((seed, position), (0.0, 1.0))
        edges = np.concatenate(([0.0], np.cumsum(probabilities[:-1]), [1.0]))
        cells = [(i, max(low, a), min(high, b)) for i, (a, b) in enumerate(itertools.pairwise(edges))]
        possible = [cell for cell in cells if cell[2] > cell[1]]
        depth = len(self._path)
        chosen = self._script[depth] if depth < len(self._script) else 0
        self._path.append((chosen, len(possible)))
        outcome, start, stop = possible[chosen]
        self.drawn[seed, position] = (start, stop)
        self.probability *= (stop - start) / (high - low)
        return outcome

    def next_script(self) -> list[int] | None:
        """The script of the next outcome in depth-first order, `None` after the last."""
        path = self._path
        while path and path[-1][0] + 1 == path[-1][1]:
            path = path[:-1]
        return [*(chosen for chosen, _ in path[:-1]), path[-1][0] + 1] if path else None


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """One way in which a play can go: its probability, what came of it, and what that says of the uniforms."""

    probability: float
    value: T
    drawn: Drawn


def outcomes(play: Callable[[Exhaustive], T], drawn: Drawn | None = None) -> Iterator[Outcome[T]]:
    """Every way in which `play` can go; the probabilities add up to 1. `play` must draw in the same order each time."""
    script: list[int] | None = []
    while script is not None:
        noise = Exhaustive(drawn or {}, script)
        value = play(noise)
        yield Outcome(noise.probability, value, noise.drawn)
        script = noise.next_script()


@dataclass(frozen=True)
class Parameters:
    """The logits that the value depends on, as a vector of length D: one per id of every row where ids have rivals.

    Attributes:
        logits: [S, V] float64, -inf for ids that cannot follow. Row 0 stands for positions that nothing is read from.
        place: [S, V] index of the parameter in the vector, -1 where there is none.
        where: [D] who meets the row: role, depth and turn, several where a context is met in several places.
        is_clone: [D] whether they are clones (`<root>` and `<clone>` start every context, so it is they alone).
    """

    row_of: Mapping[Ids, int]
    logits: torch.Tensor
    place: torch.Tensor
    where: tuple[str, ...]
    is_clone: np.ndarray

    @property
    def size(self) -> int:
        return len(self.is_clone)

    def gather(self, gradient: torch.Tensor) -> Floats:
        """[D] from [S, V]."""
        return np.asarray(gradient[self.place >= 0].numpy())


@dataclass(frozen=True)
class Solved:
    """A game with its policy, and all there is to know about the two.

    Attributes:
        trajectories: every episode, scored, under the id and seed that it was enumerated with.
        value: E[R] under the policy.
        gradient: [D] of the value by the parameters.
    """

    game: Game
    table: Table
    rules: Rules
    reward: Reward
    trajectories: tuple[Outcome[EpisodeRecord], ...]
    parameters: Parameters
    value: float
    gradient: Floats

    @property
    def clone_gradient(self) -> Floats:
        return np.asarray(self.gradient[self.parameters.is_clone])


def solve(game: Game, table: Table | None = None) -> Solved:
    """Enumerate a game under the policy of `table` (default: the game's own) and differentiate its value.

    Raises:
        ConfigError: more than `MAX_TRAJECTORIES` episodes are possible.
    """
    table, rules, reward = table or game.table(), game.rules(), game.reward()
    found = trajectories(game, table, rules, reward, RolloutRequest("exact", game.task(), 0))
    records = [outcome.value for outcome in found]
    parameters = _parameters(table, records)
    logits = parameters.logits.clone().requires_grad_()
    value = _value(logits, parameters, records)
    (gradient,) = torch.autograd.grad(value, logits)
    return Solved(game, table, rules, reward, found, parameters, float(value.detach()), parameters.gather(gradient))


def trajectories(
    game: Game, table: Table, rules: Rules, reward: Reward, request: RolloutRequest
) -> tuple[Outcome[EpisodeRecord], ...]:
    """Every episode that a request can become, scored."""
    found: list[Outcome[EpisodeRecord]] = []
    for outcome in outcomes(lambda noise: rollout([request], TabularPolicy(table, noise), rules)[0]):
        found.append(replace(outcome, value=reward.score(outcome.value)))
        if len(found) > MAX_TRAJECTORIES:
            raise ConfigError(f"game '{game.name}' has over {MAX_TRAJECTORIES} trajectories; expected a smaller one")
    return tuple(found)


def choices(record: EpisodeRecord) -> Iterator[tuple[AgentRecord, int, Ids, int]]:
    """Every sampled id of an episode, before it the agent, its turn and the context that it was drawn in."""
    for agent in record.agents:
        context: Ids = ()
        for number, turn in enumerate(agent.turns):
            context += turn.generation.prompt_ids
            for token in turn.generation.token_ids:
                yield agent, number, context, token
                context = (*context, token)


def _parameters(table: Table, records: list[EpisodeRecord]) -> Parameters:
    met: dict[Ids, set[tuple[int, int]]] = {}
    for record in records:
        for agent, number, context, _ in choices(record):
            met.setdefault(context, set()).add((agent.depth, number))
    contexts = sorted(met)
    width = 1 + max(token for record in records for agent in record.agents for token in agent.context_ids)
    logits = torch.full((1 + len(contexts), width), -torch.inf, dtype=torch.float64)
    place = torch.full(logits.shape, -1, dtype=torch.int64)
    logits[0] = 0.0
    where, is_clone = list[str](), list[bool]()
    for index, context in enumerate(contexts, 1):
        row: LogitRow = table.rows[context]
        logits[index, list(row.ids)] = torch.from_numpy(row.logits)
        if len(row.ids) > 1:
            place[index, list(row.ids)] = torch.arange(len(is_clone), len(is_clone) + len(row.ids))
            where += [" or ".join(_place(*place) for place in sorted(met[context]))] * len(row.ids)
            is_clone += [min(met[context])[0] > 0] * len(row.ids)
    row_of = {context: index for index, context in enumerate(contexts, 1)}
    return Parameters(row_of, logits, place, tuple(where), np.array(is_clone))


def _place(depth: int, turn: int) -> str:
    return f"clone at depth {depth}, turn {turn}" if depth else f"root, turn {turn}"


def _value(logits: torch.Tensor, parameters: Parameters, records: list[EpisodeRecord]) -> torch.Tensor:
    logprobs = torch.log_softmax(logits, dim=-1)
    value = torch.zeros((), dtype=torch.float64)
    for record in records:
        drawn = [(parameters.row_of[context], token) for *_, context, token in choices(record)]
        rows, tokens = torch.tensor(drawn).T
        value = value + logprobs[rows, tokens].sum().exp() * record.team_return
    return value
