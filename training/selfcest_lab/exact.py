"""Enumerates everything that can happen in a game, with probabilities: its trajectories, value and exact gradient.

Chance enters a game only through the policy's draws. `enumerate_outcomes` runs a play once for every way in which those
draws can fall. So it enumerates the real kernel, rollout and replay code, and no copy of their rules.
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
from selfcest_lab.tabular import Floats, Ids, LogitTable, TabularPolicy

T = TypeVar("T")
# The interval that contains the uniform at a (seed, position) of the random streams.
UniformIntervals = Mapping[tuple[int, int], tuple[float, float]]
MAX_TRAJECTORIES = 2000


class ScriptedNoise:
    """A noise source that follows a script of draws and computes the probability of that script.

    The uniform at a (seed, position) is one number, however often a play reads it. Each draw narrows the interval that
    contains it, and later draws from it are conditional on that interval. So streams that two replays share are as
    dependent here as in a sampled play.

    Args:
        intervals: what is already known of some uniforms.
        script: per draw an index into the outcomes that are still possible. Draws beyond the end take the first one.

    Attributes:
        intervals: what is known of the uniforms after the draws so far.
        probability: probability of the draws so far.
    """

    def __init__(self, intervals: UniformIntervals, script: list[int]) -> None:
        self.intervals = dict(intervals)
        self.probability = 1.0
        self._script = script
        self._path: list[tuple[int, int]] = []  # per draw the chosen index and the number of possible outcomes

    def pick(self, seed: int, position: int, probabilities: Floats) -> int:
        """Return the index that the script names for the next draw; see `NoiseSource`."""
        low, high = self.intervals.get((seed, position), (0.0, 1.0))
        # The last edge is 1 by definition, since the cumulative sum can differ from it by rounding.
        edges = np.concatenate(([0.0], np.cumsum(probabilities[:-1]), [1.0]))
        possible: list[tuple[int, float, float]] = []
        for index, (left, right) in enumerate(itertools.pairwise(edges)):
            start = max(low, left)
            stop = min(high, right)
            if stop > start:
                possible.append((index, start, stop))
        depth = len(self._path)
        chosen = self._script[depth] if depth < len(self._script) else 0
        self._path.append((chosen, len(possible)))
        index, start, stop = possible[chosen]
        self.intervals[seed, position] = (start, stop)
        self.probability *= (stop - start) / (high - low)
        return index

    def next_script(self) -> list[int] | None:
        """Return the script of the next outcome in depth-first order, or `None` after the last one."""
        path = self._path
        while path and path[-1][0] + 1 == path[-1][1]:
            path = path[:-1]
        if not path:
            return None
        script = [chosen for chosen, _ in path]
        script[-1] += 1
        return script


@dataclass(frozen=True)
class EnumeratedOutcome(Generic[T]):
    """One way in which a play can go.

    Attributes:
        probability: probability of its draws.
        value: what the play returned.
        intervals: what the draws tell of the uniforms.
    """

    probability: float
    value: T
    intervals: UniformIntervals


def enumerate_outcomes(
    play: Callable[[ScriptedNoise], T], intervals: UniformIntervals | None = None
) -> Iterator[EnumeratedOutcome[T]]:
    """Run `play` for every way in which its draws can fall.

    Args:
        play: must make the same draws in the same order whenever the earlier draws fell alike.
        intervals: what is already known of some uniforms; the outcomes are conditional on it.

    Returns:
        The outcomes in depth-first order. Their probabilities add up to 1.
    """
    script: list[int] | None = []
    while script is not None:
        noise = ScriptedNoise(intervals or {}, script)
        value = play(noise)
        yield EnumeratedOutcome(noise.probability, value, noise.intervals)
        script = noise.next_script()


@dataclass(frozen=True)
class Parameters:
    """The D logits that the value depends on: one per id of every row with several ids.

    Attributes:
        row_of: index of the row of each context in `logits`.
        logits: [S, V] float64, -inf for ids that cannot follow. Row 0 is the row of positions that are not trained.
        index: [S, V] index of each logit in a parameter vector, -1 where the logit is no parameter.
        locations: [D] role, depth and turn at which an agent meets the row, joined by "or" if there are several.
        is_clone: [D] whether clones meet the row. A row is met by roots only or by clones only, because every context
            starts with `<root>` or `<clone>`.
    """

    row_of: Mapping[Ids, int]
    logits: torch.Tensor
    index: torch.Tensor
    locations: tuple[str, ...]
    is_clone: np.ndarray

    @property
    def size(self) -> int:
        """The number D of parameters."""
        return len(self.is_clone)

    def gather(self, gradient: torch.Tensor) -> Floats:
        """Return the parameters' entries, [D], of a gradient by all logits, [S, V]."""
        # The mask reads row by row, which is the order in which the parameters are numbered.
        return np.asarray(gradient[self.index >= 0].numpy())


@dataclass(frozen=True)
class SolvedGame:
    """A game under one policy, with its exact value and gradient.

    Attributes:
        trajectories: every possible episode, scored. All have the same episode id and seed.
        value: expected team return E[R] under the policy.
        gradient: [D] gradient of the value by the parameters.
    """

    game: Game
    table: LogitTable
    rules: Rules
    reward: Reward
    trajectories: tuple[EnumeratedOutcome[EpisodeRecord], ...]
    parameters: Parameters
    value: float
    gradient: Floats

    @property
    def clone_gradient(self) -> Floats:
        return np.asarray(self.gradient[self.parameters.is_clone])


def solve(game: Game, table: LogitTable | None = None) -> SolvedGame:
    """Enumerate a game under the policy of `table` (default: the game's own) and differentiate its value.

    Raises:
        ConfigError: more than `MAX_TRAJECTORIES` episodes are possible.
    """
    if table is None:
        table = game.table()
    rules = game.rules()
    reward = game.reward()
    trajectories = enumerate_trajectories(game, table, rules, reward, RolloutRequest("exact", game.task(), 0))
    records = [outcome.value for outcome in trajectories]
    parameters = _number_parameters(table, records)
    logits = parameters.logits.clone().requires_grad_()
    value = _expected_return(logits, parameters, records)
    (gradient,) = torch.autograd.grad(value, logits)
    return SolvedGame(
        game, table, rules, reward, trajectories, parameters, float(value.detach()), parameters.gather(gradient)
    )


def enumerate_trajectories(
    game: Game, table: LogitTable, rules: Rules, reward: Reward, request: RolloutRequest
) -> tuple[EnumeratedOutcome[EpisodeRecord], ...]:
    """Return every episode that a request can become, scored.

    Raises:
        ConfigError: there are more than `MAX_TRAJECTORIES`.
    """
    trajectories: list[EnumeratedOutcome[EpisodeRecord]] = []
    for outcome in enumerate_outcomes(lambda noise: rollout([request], TabularPolicy(table, noise), rules)[0]):
        trajectories.append(replace(outcome, value=reward.score(outcome.value)))
        if len(trajectories) > MAX_TRAJECTORIES:
            raise ConfigError(
                f"game '{game.name}' has more than {MAX_TRAJECTORIES} trajectories; expected fewer: shorten its menus"
            )
    return tuple(trajectories)


def iter_sampled_ids(record: EpisodeRecord) -> Iterator[tuple[AgentRecord, int, Ids, int]]:
    """Iterate over the sampled ids of an episode, each as (agent, turn, context before the id, id)."""
    for agent in record.agents:
        context: Ids = ()
        for number, turn in enumerate(agent.turns):
            context += turn.generation.prompt_ids
            for token in turn.generation.token_ids:
                yield agent, number, context, token
                context = (*context, token)


def _number_parameters(table: LogitTable, records: list[EpisodeRecord]) -> Parameters:
    met_at: dict[Ids, set[tuple[int, int]]] = {}  # depths and turns at which a context occurs
    largest_id = 0
    for record in records:
        for agent, number, context, _ in iter_sampled_ids(record):
            met_at.setdefault(context, set()).add((agent.depth, number))
        for agent in record.agents:
            largest_id = max([largest_id, *agent.context_ids])
    contexts = sorted(met_at)
    logits = torch.full((1 + len(contexts), 1 + largest_id), -torch.inf, dtype=torch.float64)
    logits[0] = 0.0  # a row of -inf only would make the log-softmax of untrained positions nan
    index = torch.full(logits.shape, -1, dtype=torch.int64)
    locations: list[str] = []
    is_clone: list[bool] = []
    row_of: dict[Ids, int] = {}
    for row_index, context in enumerate(contexts, 1):
        row_of[context] = row_index
        row = table.rows[context]
        ids = list(row.ids)
        logits[row_index, ids] = torch.from_numpy(row.logits)
        if len(ids) > 1:
            index[row_index, ids] = torch.arange(len(is_clone), len(is_clone) + len(ids))
            depths_and_turns = sorted(met_at[context])
            location = " or ".join(_describe_location(depth, turn) for depth, turn in depths_and_turns)
            smallest_depth, _ = depths_and_turns[0]
            locations += [location] * len(ids)
            is_clone += [smallest_depth > 0] * len(ids)
    return Parameters(row_of, logits, index, tuple(locations), np.array(is_clone))


def _describe_location(depth: int, turn: int) -> str:
    return f"clone at depth {depth}, turn {turn}" if depth else f"root, turn {turn}"


def _expected_return(logits: torch.Tensor, parameters: Parameters, records: list[EpisodeRecord]) -> torch.Tensor:
    """Sum over trajectories of probability times return, differentiable by the logits."""
    logprobs = torch.log_softmax(logits, dim=-1)
    value = torch.zeros((), dtype=torch.float64)
    for record in records:
        rows_and_ids = [(parameters.row_of[context], token) for *_, context, token in iter_sampled_ids(record)]
        rows, ids = torch.tensor(rows_and_ids).T
        value = value + logprobs[rows, ids].sum().exp() * record.team_return
    return value
