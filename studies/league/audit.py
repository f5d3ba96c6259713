"""Influence and credit fidelity, as C3 reports them, where both are known exactly.

C3 (arXiv 2603.06859) defines them in its released code, `c3/analysis/metrics.py` at 6281858. Its text could be read in
the abstract only.

* Influence is I(J; Y | h) in nats: the mutual information between an agent's turn J and the next turn Y of the agent
  that reads it, given the history h. C3 estimates it from `CANDIDATES` turns per history with one next turn each, and
  adds `SMOOTHING` to every count (defaults of its script).
* Fidelity is the Spearman correlation, over turns, of the credit with Q(h, turn) - V(h). C3 takes the mean return of
  the same candidates for V, so that a leave-one-out credit is a multiple of what it is compared with. Here Q and V are
  exact, and h is the context of the credited agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeRecord
from selfcest_env.types import ROOT, AgentId, Role, TurnKey
from selfcest_lab.estimate import credit_groups
from selfcest_lab.exact import SolvedGame
from selfcest_lab.tabular import Ids
from selfcest_training.credit import CreditAssigner

CANDIDATES = 8
SMOOTHING = 0.01
_HISTORIES = 400  # drawn for the expectation of C3's estimate


class ClonesTurn(NamedTuple):
    """The first turn of a clone: who takes it, in which context, and what it writes."""

    agent_id: AgentId
    context: Ids
    ids: Ids


def compute_exact_advantages(solved: SolvedGame) -> dict[ClonesTurn, float]:
    """Compute Q(context, turn) - V(context) for the first turn of every clone of a game."""
    reached: Counter[tuple[AgentId, Ids]] = Counter()
    taken: Counter[ClonesTurn] = Counter()
    value: dict[tuple[AgentId, Ids], float] = {}
    action_value: dict[ClonesTurn, float] = {}
    for outcome in solved.trajectories:
        for turn in list_first_turns(outcome.value):
            state = turn.agent_id, turn.context
            reached[state] += outcome.probability  # type: ignore[assignment]
            taken[turn] += outcome.probability  # type: ignore[assignment]
            contribution = outcome.probability * outcome.value.team_return
            value[state] = value.get(state, 0.0) + contribution
            action_value[turn] = action_value.get(turn, 0.0) + contribution
    advantages: dict[ClonesTurn, float] = {}
    for turn, probability in taken.items():
        state = turn.agent_id, turn.context
        advantages[turn] = action_value[turn] / probability - value[state] / reached[state]
    return advantages


def measure_fidelity(
    assigner: CreditAssigner, solved: SolvedGame, *, group_size: int, num_groups: int, seed: int
) -> float | None:
    """Return the Spearman correlation of a scheme's credit with the exact advantage, over the clones' first turns.

    Returns:
        `None` if no such turn is credited; 0 if all credits are equal.
    """
    exact = compute_exact_advantages(solved)
    credits: list[float] = []
    advantages: list[float] = []
    chunks = credit_groups(assigner, solved, group_size=group_size, num_groups=num_groups, seed=seed)
    for groups, _, step in chunks:
        for group, credit in zip(groups, step.credits, strict=True):
            for episode in group.episodes:
                for turn in list_first_turns(episode):
                    key = TurnKey(episode.episode_id, turn.agent_id, 0)
                    if key in credit.advantage:
                        credits.append(float(np.mean(credit.advantage[key])))
                        advantages.append(exact[turn])
    return compute_spearman(credits, advantages) if credits else None


def compute_spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of ranks, with mean ranks for equal values; 0 if all values of one side are equal."""
    ranks = np.array([_rank(first), _rank(second)])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1)
    return float(centred[0] @ centred[1] / (lengths[0] * lengths[1])) if lengths.all() else 0.0


def _rank(values: Sequence[float]) -> np.ndarray:
    # Credits that differ by rounding are equal.
    rounded = np.round(np.array(values), 9)
    _, positions, counts = np.unique(rounded, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[positions])


def measure_influence(solved: SolvedGame) -> tuple[float, float]:
    """Return the exact influence of a clone's first turn on its parent's next one, and the mean of C3's estimate.

    A history is the clone's context and everything that its siblings write, since a replay keeps both.
    """
    by_history: dict[object, Counter[tuple[Ids, Ids]]] = {}
    for outcome in solved.trajectories:
        for agent in _list_clones(outcome.value):
            joint = by_history.setdefault(_get_history(outcome.value, agent), Counter())
            pair = agent.turns[0].generation.token_ids, _get_next_turn(outcome.value, agent)
            joint[pair] += outcome.probability  # type: ignore[assignment]
    weights = np.array([sum(joint.values()) for joint in by_history.values()])
    tables = [_to_table(joint) for joint in by_history.values()]
    exact = float(np.average([_mutual_information(table) for table in tables], weights=weights))
    rng = np.random.default_rng(0)
    size_of_vocabulary = len({after for joint in by_history.values() for _, after in joint}) + 1
    estimates = []
    for index in rng.choice(len(tables), size=_HISTORIES, p=weights / weights.sum()):
        estimates.append(_estimate_as_c3(tables[index], size_of_vocabulary, rng))
    return exact, float(np.mean(estimates))


def _estimate_as_c3(table: np.ndarray, size_of_vocabulary: int, rng: np.random.Generator) -> float:
    """Return C3's estimate from `CANDIDATES` draws of a table [turns, next turns] of joint probabilities."""
    draws = rng.choice(table.size, size=CANDIDATES, p=table.flatten() / table.sum())
    counts = np.zeros((CANDIDATES, size_of_vocabulary))
    counts[np.arange(CANDIDATES), draws % table.shape[1]] = 1
    return _mutual_information(counts + SMOOTHING)


def _mutual_information(joint: np.ndarray) -> float:
    """Return the mutual information of a table of joint weights, in nats."""
    joint = joint / joint.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    present = joint > 0
    return max(0.0, float(np.sum(joint[present] * np.log(joint[present] / independent[present]))))


def _to_table(joint: Mapping[tuple[Ids, Ids], float]) -> np.ndarray:
    turns = {turn: i for i, turn in enumerate(dict.fromkeys(turn for turn, _ in joint))}
    following = {after: i for i, after in enumerate(dict.fromkeys(after for _, after in joint))}
    table = np.zeros((len(turns), len(following)))
    for (turn, after), probability in joint.items():
        table[turns[turn], following[after]] += probability
    return table


def _list_clones(record: EpisodeRecord) -> Iterator[AgentRecord]:
    for agent in record.agents:
        if agent.role is Role.CLONE and agent.turns:
            yield agent


def list_first_turns(record: EpisodeRecord) -> Iterator[ClonesTurn]:
    for agent in _list_clones(record):
        generation = agent.turns[0].generation
        yield ClonesTurn(agent.agent_id, tuple(generation.prompt_ids), tuple(generation.token_ids))


def _get_history(record: EpisodeRecord, clone: AgentRecord) -> object:
    siblings = []
    for agent in record.agents:
        is_sibling = agent.parent_id == clone.parent_id and agent.born_at == clone.born_at
        if is_sibling and agent.agent_id != clone.agent_id:
            siblings.append(tuple(tuple(turn.generation.token_ids) for turn in agent.turns))
    return clone.agent_id, tuple(clone.turns[0].generation.prompt_ids), tuple(siblings)


def _get_next_turn(record: EpisodeRecord, clone: AgentRecord) -> Ids:
    """Return what the clone's parent writes after the join; nothing if it has no further turn."""
    assert clone.born_at is not None
    later = record.by_id[clone.parent_id or ROOT].turns[clone.born_at + 1 :]
    return tuple(later[0].generation.token_ids) if later else ()
