"""The exact expectation of a scheme's gradient estimate, where an episode and its replays have few enough outcomes.

The gradient of a group is a sum over its episodes. For each of them every outcome is enumerated, its replays included,
against every outcome of the other episodes; of the *others'* replays one random play is taken, as a scheme does not
let them matter, nor the episodes' seeds. Whether that is so is checked on the way, and a scheme that does (by drawing
which clones get replays, say) is left to sampling. On policy the loss is linear in the advantages, so their conditional
means are enough to have its expected gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.types import TurnKey
from selfcest_training.credit import Credit, CreditAssigner, ask, assign
from selfcest_training.lab.estimate import group_gradients, lab_request, scored
from selfcest_training.lab.exact import Exhaustive, Outcome, Solved, outcomes, trajectories
from selfcest_training.lab.tabular import Floats, TabularPolicy

_MAX_PLAYS = 100  # of the replays of one episode
_CHECK_EVERY = 16  # outcomes, of which one is tried with other seeds and another play of the others' replays


@dataclass(frozen=True)
class _Play:
    """One way in which the replays of an episode can go."""

    probability: float
    records: Mapping[Replay, EpisodeRecord]


class _OnlySampled(Exception):
    """More outcomes than allowed, or a scheme that lets the others' replays or the seeds matter."""


@dataclass
class _Plays:
    """All plays of the replays of an episode, enumerated when they are first asked for."""

    solved: Solved
    _known: dict[tuple[str, int, tuple[Replay, ...]], list[_Play]] = field(default_factory=dict)

    def of(self, pick: int, outcome: Outcome[EpisodeRecord], wanted: Sequence[Replay]) -> list[_Play]:
        name = outcome.value.episode_id
        own = tuple(replay for replay in wanted if replay.episode_id == name)
        if (name, pick, own) not in self._known:
            self._known[name, pick, own] = list(self._enumerate(outcome, own))
        return self._known[name, pick, own]

    def _enumerate(self, outcome: Outcome[EpisodeRecord], wanted: tuple[Replay, ...]) -> Iterator[_Play]:
        def play(noise: Exhaustive) -> dict[Replay, PlayedReplay]:
            return play_replays([outcome.value], wanted, TabularPolicy(self.solved.table, noise), self.solved.rules)

        for count, found in enumerate(outcomes(play, outcome.drawn), 1):
            if count > _MAX_PLAYS:
                raise _OnlySampled
            records = {name: play.record for name, play in scored(self.solved, found.value).items()}
            yield _Play(found.probability, records)


def expected_gradient(
    assigner: CreditAssigner, solved: Solved, *, group_size: int, max_outcomes: int = 100_000
) -> Floats | None:
    """[D] exact expectation of the estimate of one group, or `None` where it cannot be had.

    Args:
        max_outcomes: calls of the scheme that may be made.
    """
    slots = [
        trajectories(solved.game, solved.table, solved.rules, solved.reward, lab_request(solved, 0, 0, k))
        for k in range(group_size)
    ]
    if len(solved.trajectories) ** group_size * group_size > max_outcomes:
        return None
    try:
        return _expectation(assigner, solved, slots, max_outcomes)
    except _OnlySampled:
        return None


def _expectation(
    assigner: CreditAssigner, solved: Solved, slots: Sequence[Sequence[Outcome[EpisodeRecord]]], max_outcomes: int
) -> Floats:
    plays, rng, calls = _Plays(solved), np.random.default_rng(0), 0
    groups: list[EpisodeGroup] = []
    credits: list[Credit] = []
    weights: list[float] = []
    for picks in itertools.product(*(range(len(slot)) for slot in slots)):
        chosen = [slot[pick] for slot, pick in zip(slots, picks, strict=True)]
        group = EpisodeGroup(solved.game.task(), tuple(outcome.value for outcome in chosen))
        reseeded = EpisodeGroup(group.task, tuple(replace(e, seed=int(rng.integers(2**62))) for e in group.episodes))
        wanted = ask(assigner, group)
        if ask(assigner, reseeded) != wanted:
            raise _OnlySampled
        possible = [plays.of(pick, outcome, wanted) for pick, outcome in zip(picks, chosen, strict=True)]
        calls += sum(map(len, possible))
        if calls > max_outcomes:
            raise _OnlySampled
        advantages: dict[TurnKey, Floats] = {}
        for own, episode in enumerate(group.episodes):
            for index, play in enumerate(possible[own]):
                credit = _answer(assigner, group, possible, own, rng, play)
                if index % _CHECK_EVERY == 0:
                    _check_same(credit, _answer(assigner, reseeded, possible, own, rng, play), episode)
                for key, turn in episode.turns():
                    value = np.asarray(credit.advantage.get(key, 0.0)) * np.ones(len(turn.generation.token_ids))
                    advantages[key] = advantages.get(key, 0.0) + play.probability * value
        parts = _in_two(advantages)
        groups += [group] * len(parts)
        credits += parts
        weights += [math.prod(outcome.probability for outcome in chosen)] * len(parts)
    return np.asarray(np.array(weights) @ group_gradients(solved.parameters, groups, credits))


def _answer(
    assigner: CreditAssigner,
    group: EpisodeGroup,
    possible: Sequence[Sequence[_Play]],
    own: int,
    rng: np.random.Generator,
    play: _Play,
) -> Credit:
    """Credit of a group with this play of its own replays and a random one of the others'."""
    replayed = dict(play.records)
    for k, plays in enumerate(possible):
        if k != own:
            weights = np.array([other.probability for other in plays])
            replayed.update(plays[int(rng.choice(len(plays), p=weights / weights.sum()))].records)
    return assign(assigner, group, replayed)


def _check_same(credit: Credit, again: Credit, episode: EpisodeRecord) -> None:
    for key, _ in episode.turns():
        if not np.allclose(credit.advantage.get(key, 0.0), again.advantage.get(key, 0.0), rtol=0, atol=1e-12):
            raise _OnlySampled


def _in_two(advantages: Mapping[TurnKey, Floats]) -> list[Credit]:
    """Two credits that add up to these advantages per token: a batch stores them in single precision."""
    coarse = {key: value.astype(np.float32).astype(np.float64) for key, value in advantages.items()}
    rest = {key: value - coarse[key] for key, value in advantages.items()}
    return [Credit({key: tuple(value.tolist()) for key, value in part.items()}) for part in (coarse, rest)]
