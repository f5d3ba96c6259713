"""The exact expectation of a scheme's gradient estimate, where an episode and its replays have few enough outcomes.

The gradient of a group is a sum over its episodes. For each of them every outcome is enumerated, its replays included,
against every outcome of the other episodes, and every draw that the scheme makes by `credit.chance`. Of the *others'*
replays one random play is taken, as most schemes do not let them matter; whether that is so is checked on the way, and
for a scheme that does let them all plays of all episodes are enumerated together. A scheme with random numbers of its
own, keyed by the episodes' seeds, is left to sampling, and so is one that draws in a second round of replays. On policy
the loss is linear in the advantages, so their conditional means are enough to have its expected gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from selfcest_agents.replay import play_replays
from selfcest_env.errors import SelfcestError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.types import TurnKey
from selfcest_lab.estimate import group_gradients, lab_request, scored
from selfcest_lab.exact import Exhaustive, Outcome, Solved, outcomes, trajectories
from selfcest_lab.tabular import Floats, TabularPolicy
from selfcest_training.credit import Credit, CreditAssigner, Replayed, ask, ask_more, assign, overrides
from selfcest_training.credit.chance import picked

_MAX_PLAYS = 100  # of the replays of one episode
_MAX_DRAWS = 300  # of a scheme's own for one group
_TOGETHER = 5  # so much fewer calls where all plays are enumerated together, which soon are too many
_CHECK_EVERY = 16  # outcomes, of which one is tried with other seeds and another play of the others' replays


@dataclass(frozen=True)
class _Play:
    """One way in which the replays of an episode can go."""

    probability: float
    records: Mapping[Replay, EpisodeRecord]


class _OnlySampled(SelfcestError):
    """More outcomes than allowed, or a scheme that lets the seeds matter, or draws in its second round."""


class _Entangled(Exception):
    """A scheme that lets the others' replays matter."""


@dataclass
class _Plays:
    """All plays of the replays of an episode, enumerated when they are first asked for."""

    assigner: CreditAssigner
    solved: Solved
    _known: dict[tuple[str, int, tuple[Replay, ...]], list[_Play]] = field(default_factory=dict)

    def of(self, pick: int, outcome: Outcome[EpisodeRecord], wanted: Sequence[Replay]) -> list[_Play]:
        name = outcome.value.episode_id
        own = tuple(replay for replay in wanted if replay.episode_id == name)
        if (name, pick, own) not in self._known:
            self._known[name, pick, own] = list(self._enumerate(outcome, own))
        return self._known[name, pick, own]

    def _enumerate(self, outcome: Outcome[EpisodeRecord], wanted: tuple[Replay, ...]) -> Iterator[_Play]:
        episode = outcome.value
        alone, reseeded = (EpisodeGroup(e.task, (e,)) for e in (episode, replace(episode, seed=episode.seed + 1)))

        def play(noise: Exhaustive) -> Replayed:
            policy = TabularPolicy(self.solved.table, noise)

            def played(episodes: Iterable[EpisodeRecord], asked: Sequence[Replay]) -> dict[Replay, EpisodeRecord]:
                found = scored(self.solved, play_replays(episodes, asked, policy, self.solved.rules))
                return {replay: play.record for replay, play in found.items()}

            first = played([episode], wanted)
            with picked(_refuse):
                more = ask_more(self.assigner, alone, first)
                if ask_more(self.assigner, reseeded, first) != more:
                    raise _OnlySampled
            return {**first, **played([episode, *first.values()], more)} if more else first

        for count, found in enumerate(outcomes(play, outcome.drawn), 1):
            if count > _MAX_PLAYS:
                raise _OnlySampled
            yield _Play(found.probability, found.value)


def _refuse(name: tuple[object, ...], probabilities: Sequence[float]) -> int:
    """Draws of a second round depend on plays, so they are not enumerated with those of the first."""
    if 1 not in probabilities:
        raise _OnlySampled
    return list(probabilities).index(1)


def expected_gradient(
    assigner: CreditAssigner, solved: Solved, *, group_size: int, max_outcomes: int = 100_000
) -> Floats | None:
    """[D] exact expectation of the estimate of one group, or `None` where it cannot be had, as of one that learns.

    Args:
        max_outcomes: calls of the scheme that may be made.
    """
    if assigner.internals or overrides(assigner, "fit"):
        return None
    slots = [
        trajectories(solved.game, solved.table, solved.rules, solved.reward, lab_request(solved, 0, 0, k))
        for k in range(group_size)
    ]
    if len(solved.trajectories) ** group_size * group_size > max_outcomes:
        return None
    try:
        try:
            return _Expectation(assigner, solved, slots, max_outcomes, together=False).value()
        except _Entangled:
            return _Expectation(assigner, solved, slots, max_outcomes // _TOGETHER, together=True).value()
    except _OnlySampled:
        return None


Advantages = dict[TurnKey, Floats]


@dataclass
class _Mean:
    """Mean advantages per token of the episodes' turns; and those of turns of replays, each with its probability, for
    which the turns themselves differ."""

    advantages: Advantages = field(default_factory=dict)
    branches: list[tuple[float, EpisodeRecord, Advantages]] = field(default_factory=list)

    def add(self, credit: Credit, episodes: Iterable[EpisodeRecord], replayed: Replayed, weight: float) -> None:
        for episode in episodes:
            for key, value in _per_token(credit, episode).items():
                self.advantages[key] = self.advantages.get(key, 0.0) + weight * value
        for record in replayed.values():
            if named := {key: value for key, value in _per_token(credit, record).items() if key in credit.advantage}:
                self.branches.append((weight, record, named))


def _per_token(credit: Credit, record: EpisodeRecord) -> Advantages:
    return {key: credit.weighted(key, len(turn.generation.token_ids)) for key, turn in record.turns()}


@dataclass
class _Expectation:
    """One enumeration.

    Attributes:
        slots: per place in the group, every outcome of an episode there.
        max_outcomes: calls of the scheme that may be made.
        together: enumerate the plays of all episodes jointly.
    """

    assigner: CreditAssigner
    solved: Solved
    slots: Sequence[Sequence[Outcome[EpisodeRecord]]]
    max_outcomes: int
    together: bool
    calls: int = 0

    def __post_init__(self) -> None:
        self._plays, self._rng = _Plays(self.assigner, self.solved), np.random.default_rng(0)

    def value(self) -> Floats:
        groups: list[EpisodeGroup] = []
        credits: list[Credit] = []
        weights: list[float] = []
        for picks in itertools.product(*(range(len(slot)) for slot in self.slots)):
            chosen = [slot[pick] for slot, pick in zip(self.slots, picks, strict=True)]
            probability, mean = math.prod(outcome.probability for outcome in chosen), _Mean()
            for count, drawn in enumerate(outcomes(partial(self._credited, picks, chosen)), 1):
                if count > _MAX_DRAWS:
                    raise _OnlySampled
                for key, value in drawn.value.advantages.items():
                    mean.advantages[key] = mean.advantages.get(key, 0.0) + drawn.probability * value
                mean.branches += [
                    (drawn.probability * weight, record, named) for weight, record, named in drawn.value.branches
                ]
            group = EpisodeGroup(self.solved.game.task(), tuple(outcome.value for outcome in chosen))
            # A replay's turns weigh as in a group of this size, not of one.
            branches = [
                (weight / len(chosen), EpisodeGroup(group.task, (record,)), advantages)
                for weight, record, advantages in mean.branches
            ]
            for weight, of, advantages in [(1.0, group, mean.advantages), *branches]:
                parts = _in_two(advantages)
                groups += [of] * len(parts)
                credits += parts
                weights += [probability * weight] * len(parts)
        return np.asarray(np.array(weights) @ group_gradients(self.solved.parameters, groups, credits))

    def _credited(self, picks: Sequence[int], chosen: Sequence[Outcome[EpisodeRecord]], noise: Exhaustive) -> _Mean:
        """Mean advantages over the replays of these episodes, for one way in which the scheme's own draws fall."""
        names: dict[tuple[object, ...], int] = {}

        def pick(name: tuple[object, ...], probabilities: Sequence[float]) -> int:
            return noise.pick(names.setdefault(name, len(names)), 0, np.asarray(probabilities))

        group = EpisodeGroup(self.solved.game.task(), tuple(outcome.value for outcome in chosen))
        seeds = (int(self._rng.integers(2**62)) for _ in chosen)
        reseeded = EpisodeGroup(
            group.task, tuple(replace(e, seed=seed) for e, seed in zip(group.episodes, seeds, strict=True))
        )
        with picked(pick):
            wanted = ask(self.assigner, group)
            if ask(self.assigner, reseeded) != wanted:
                raise _OnlySampled
            possible = [self._plays.of(pick, outcome, wanted) for pick, outcome in zip(picks, chosen, strict=True)]
            self._count(math.prod(map(len, possible)) if self.together else sum(map(len, possible)))
            return (self._jointly if self.together else self._one_by_one)(group, reseeded, possible)

    def _count(self, calls: int) -> None:
        self.calls += calls
        if self.calls > self.max_outcomes:
            raise _OnlySampled

    def _one_by_one(self, group: EpisodeGroup, reseeded: EpisodeGroup, possible: Sequence[list[_Play]]) -> _Mean:
        mean = _Mean()
        for own, episode in enumerate(group.episodes):
            for index, play in enumerate(possible[own]):
                replayed = self._with_others(possible, own, play)
                credit = assign(self.assigner, group, replayed)
                if index % _CHECK_EVERY == 0:
                    looked_at = [episode, *play.records.values()]
                    _check_same(credit, assign(self.assigner, reseeded, replayed), looked_at, _OnlySampled)
                    others = self._with_others(possible, own, play)
                    _check_same(credit, assign(self.assigner, group, others), looked_at, _Entangled)
                mean.add(credit, [episode], play.records, play.probability)
        return mean

    def _with_others(self, possible: Sequence[list[_Play]], own: int, play: _Play) -> dict[Replay, EpisodeRecord]:
        """This play of its own replays and a random one of the others'."""
        replayed = dict(play.records)
        for k, plays in enumerate(possible):
            if k != own:
                weights = np.array([other.probability for other in plays])
                replayed.update(plays[int(self._rng.choice(len(plays), p=weights / weights.sum()))].records)
        return replayed

    def _jointly(self, group: EpisodeGroup, reseeded: EpisodeGroup, possible: Sequence[list[_Play]]) -> _Mean:
        mean = _Mean()
        for index, plays in enumerate(itertools.product(*possible)):
            replayed = {name: record for play in plays for name, record in play.records.items()}
            credit = assign(self.assigner, group, replayed)
            if index % _CHECK_EVERY == 0:
                looked_at = [*group.episodes, *replayed.values()]
                _check_same(credit, assign(self.assigner, reseeded, replayed), looked_at, _OnlySampled)
            mean.add(credit, group.episodes, replayed, math.prod(play.probability for play in plays))
        return mean


def _check_same(credit: Credit, again: Credit, episodes: Iterable[EpisodeRecord], otherwise: type[Exception]) -> None:
    for episode in episodes:
        for key, turn in episode.turns():
            ours, theirs = (found.weighted(key, len(turn.generation.token_ids)) for found in (credit, again))
            if np.abs(ours - theirs).max(initial=0.0) > 1e-12:
                raise otherwise


def _in_two(advantages: Mapping[TurnKey, Floats]) -> list[Credit]:
    """Two credits that add up to these advantages per token: a batch stores them in single precision."""
    coarse = {key: value.astype(np.float32).astype(np.float64) for key, value in advantages.items()}
    rest = {key: value - coarse[key] for key, value in advantages.items()}
    return [Credit({key: tuple(value.tolist()) for key, value in part.items()}) for part in (coarse, rest)]
