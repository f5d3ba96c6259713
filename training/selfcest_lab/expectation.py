"""The exact expectation of a scheme's gradient estimate, for games with few enough outcomes.

A group's gradient is a sum over its episodes. For each episode the module enumerates every outcome of the episode and
of its replays, every outcome of the group's other episodes, and every draw that the scheme makes by `credit.chance`.
Most schemes ignore the replays of other episodes, so one random outcome stands for those. This is checked on the way,
and a scheme that reads them gets a joint enumeration of all replays.

A scheme is sampled instead if it has random numbers of its own, or draws in a second round of replays. On policy the
loss is linear in the advantages, so their conditional means are enough for the expected gradient.
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
from selfcest_lab.estimate import compute_group_gradients, make_request, score_replays
from selfcest_lab.exact import (
    EnumeratedOutcome,
    ScriptedNoise,
    SolvedGame,
    enumerate_outcomes,
    enumerate_trajectories,
)
from selfcest_lab.tabular import Floats, TabularPolicy
from selfcest_training.credit import (
    Credit,
    CreditAssigner,
    ReplayRecords,
    assign,
    request_more_replays,
    request_replays,
)
from selfcest_training.credit.chance import override_draws

_MAX_REPLAY_OUTCOMES = 100  # of the replays of one episode
_MAX_SCHEME_DRAWS = 300  # outcomes of the scheme's own draws for one group
_JOINT_COST = 5  # a joint enumeration may make so many times fewer calls, because it grows exponentially
_CHECK_EVERY = 16  # outcomes per check that neither the seeds nor the other episodes' replays matter


@dataclass(frozen=True)
class _ReplayOutcome:
    """One way in which the replays of an episode can go."""

    probability: float
    records: Mapping[Replay, EpisodeRecord]


class _NotEnumerable(SelfcestError):
    """There are too many outcomes, or the scheme depends on the seeds, or it draws in its second round."""


class _ReadsOtherReplays(Exception):
    """The credit of an episode depends on the replays of another episode."""


@dataclass
class _ReplayEnumerator:
    """Enumerates the outcomes of an episode's replays, each set of replays once."""

    assigner: CreditAssigner
    solved: SolvedGame
    _cache: dict[tuple[str, int, tuple[Replay, ...]], list[_ReplayOutcome]] = field(default_factory=dict)

    def outcomes_of(
        self, pick: int, trajectory: EnumeratedOutcome[EpisodeRecord], replays: Sequence[Replay]
    ) -> list[_ReplayOutcome]:
        """Return every outcome of those replays that start from this episode.

        Args:
            pick: index of the trajectory among the outcomes at its position in the group.
            trajectory: the episode.
            replays: the replays of the whole group.
        """
        episode_id = trajectory.value.episode_id
        episode_replays = tuple(replay for replay in replays if replay.episode_id == episode_id)
        key = (episode_id, pick, episode_replays)
        if key not in self._cache:
            self._cache[key] = list(self._enumerate(trajectory, episode_replays))
        return self._cache[key]

    def _enumerate(
        self, trajectory: EnumeratedOutcome[EpisodeRecord], replays: tuple[Replay, ...]
    ) -> Iterator[_ReplayOutcome]:
        episode = trajectory.value
        group = EpisodeGroup(episode.task, (episode,))
        reseeded = EpisodeGroup(episode.task, (replace(episode, seed=episode.seed + 1),))

        def play_both_rounds(noise: ScriptedNoise) -> ReplayRecords:
            policy = TabularPolicy(self.solved.table, noise)

            def play(episodes: Iterable[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, EpisodeRecord]:
                played = score_replays(self.solved, play_replays(episodes, replays, policy, self.solved.rules))
                return {replay: result.record for replay, result in played.items()}

            first_round = play([episode], replays)
            with override_draws(_refuse_to_draw):
                more_replays = request_more_replays(self.assigner, group, first_round)
                if request_more_replays(self.assigner, reseeded, first_round) != more_replays:
                    raise _NotEnumerable
            if not more_replays:
                return first_round
            # A replay of the second round can start from a record of the first.
            return {**first_round, **play([episode, *first_round.values()], more_replays)}

        # The episode's intervals make the replays conditional on what the episode drew from shared streams.
        for count, outcome in enumerate(enumerate_outcomes(play_both_rounds, trajectory.intervals), 1):
            if count > _MAX_REPLAY_OUTCOMES:
                raise _NotEnumerable
            yield _ReplayOutcome(outcome.probability, outcome.value)


def _refuse_to_draw(name: tuple[object, ...], probabilities: Sequence[float]) -> int:
    """Allow only certain draws: draws of a second round depend on replays, so the first round cannot enumerate them."""
    if 1 not in probabilities:
        raise _NotEnumerable
    return list(probabilities).index(1)


def expected_gradient(
    assigner: CreditAssigner, solved: SolvedGame, *, group_size: int, max_outcomes: int = 100_000
) -> Floats | None:
    """Return the exact expectation of the gradient estimate of one group.

    Args:
        assigner: the scheme. What it has learned stays as it is.
        solved: the game.
        group_size: episodes of a group.
        max_outcomes: maximum number of calls of the scheme.

    Returns:
        [D], or `None` where the scheme cannot be enumerated: it reads internals of the policy, depends on the seeds,
        draws in its second round, or has too many outcomes.
    """
    if assigner.internals:
        return None
    outcomes_by_position = []
    for index in range(group_size):
        request = make_request(solved, 0, 0, index)
        outcomes_by_position.append(
            enumerate_trajectories(solved.game, solved.table, solved.rules, solved.reward, request)
        )
    if len(solved.trajectories) ** group_size * group_size > max_outcomes:
        return None
    try:
        try:
            return _GroupEnumeration(
                assigner, solved, outcomes_by_position, max_outcomes, joint=False
            ).expected_gradient()
        except _ReadsOtherReplays:
            max_joint_outcomes = max_outcomes // _JOINT_COST
            return _GroupEnumeration(
                assigner, solved, outcomes_by_position, max_joint_outcomes, joint=True
            ).expected_gradient()
    except _NotEnumerable:
        return None


TokenAdvantages = dict[TurnKey, Floats]  # per turn one advantage per generated id


@dataclass
class _MeanAdvantages:
    """Mean advantages of a group, which grow by one outcome of its replays at a time.

    Attributes:
        advantages: of the episodes' turns, means over the outcomes so far.
        branches: of the replays' turns. The turns themselves differ by outcome, so each record stands for itself with
            its probability.
    """

    advantages: TokenAdvantages = field(default_factory=dict)
    branches: list[tuple[float, EpisodeRecord, TokenAdvantages]] = field(default_factory=list)

    def add(self, credit: Credit, episodes: Iterable[EpisodeRecord], replayed: ReplayRecords, weight: float) -> None:
        """Add one outcome of this probability, with the credit of these episodes and of all replays."""
        for episode in episodes:
            for key, advantage in _token_advantages(credit, episode).items():
                self.advantages[key] = self.advantages.get(key, 0.0) + weight * advantage
        for record in replayed.values():
            # Most schemes give no advantage to turns of replays, and these are then not trained on.
            credited = {
                key: advantage
                for key, advantage in _token_advantages(credit, record).items()
                if key in credit.advantage
            }
            if credited:
                self.branches.append((weight, record, credited))

    def add_scaled(self, mean: _MeanAdvantages, weight: float) -> None:
        """Add another mean that holds with this probability."""
        for key, advantage in mean.advantages.items():
            self.advantages[key] = self.advantages.get(key, 0.0) + weight * advantage
        for branch_weight, record, credited in mean.branches:
            self.branches.append((weight * branch_weight, record, credited))


def _token_advantages(credit: Credit, record: EpisodeRecord) -> TokenAdvantages:
    return {key: credit.weighted(key, len(turn.generation.token_ids)) for key, turn in record.turns()}


@dataclass
class _GroupEnumeration:
    """Enumerates all groups of a scheme in a game.

    Attributes:
        outcomes_by_position: every outcome of the episode at each position in the group.
        max_outcomes: maximum number of calls of the scheme.
        joint: whether the replays of all episodes are enumerated together.
        calls: calls of the scheme so far.
    """

    assigner: CreditAssigner
    solved: SolvedGame
    outcomes_by_position: Sequence[Sequence[EnumeratedOutcome[EpisodeRecord]]]
    max_outcomes: int
    joint: bool
    calls: int = 0

    def __post_init__(self) -> None:
        self._replays = _ReplayEnumerator(self.assigner, self.solved)
        self._rng = np.random.default_rng(0)  # of the random outcomes that stand for the other episodes' replays

    def expected_gradient(self) -> Floats:
        """Return the expectation, [D].

        Raises:
            _NotEnumerable: the scheme must be sampled.
            _ReadsOtherReplays: the enumeration must be joint.
        """
        groups: list[EpisodeGroup] = []
        credits: list[Credit] = []
        weights: list[float] = []

        def add_group(weight: float, group: EpisodeGroup, advantages: TokenAdvantages) -> None:
            for credit in _split_precision(advantages):
                groups.append(group)
                credits.append(credit)
                weights.append(weight)

        for picks in itertools.product(*(range(len(outcomes)) for outcomes in self.outcomes_by_position)):
            chosen = [outcomes[pick] for outcomes, pick in zip(self.outcomes_by_position, picks, strict=True)]
            probability = math.prod(trajectory.probability for trajectory in chosen)
            mean = self._mean_advantages(picks, chosen)
            group = EpisodeGroup(self.solved.game.task(), tuple(trajectory.value for trajectory in chosen))
            add_group(probability, group, mean.advantages)
            for weight, record, advantages in mean.branches:
                # The loss divides by the number of episodes: a replay's turns weigh as in a group of this size.
                branch_weight = weight / len(chosen)
                add_group(probability * branch_weight, EpisodeGroup(group.task, (record,)), advantages)
        return np.asarray(np.array(weights) @ compute_group_gradients(self.solved.parameters, groups, credits))

    def _mean_advantages(
        self, picks: Sequence[int], chosen: Sequence[EnumeratedOutcome[EpisodeRecord]]
    ) -> _MeanAdvantages:
        """Return the mean over the scheme's own draws and over the replays of these episodes."""
        mean = _MeanAdvantages()
        for count, draws in enumerate(enumerate_outcomes(partial(self._mean_given_draws, picks, chosen)), 1):
            if count > _MAX_SCHEME_DRAWS:
                raise _NotEnumerable
            mean.add_scaled(draws.value, draws.probability)
        return mean

    def _mean_given_draws(
        self, picks: Sequence[int], chosen: Sequence[EnumeratedOutcome[EpisodeRecord]], noise: ScriptedNoise
    ) -> _MeanAdvantages:
        """Return the mean over the replays of these episodes, for one outcome of the scheme's own draws."""
        seed_of: dict[tuple[object, ...], int] = {}

        def pick_index(name: tuple[object, ...], probabilities: Sequence[float]) -> int:
            # Equal names share a uniform, as they do in training.
            return noise.pick(seed_of.setdefault(name, len(seed_of)), 0, np.asarray(probabilities))

        group = EpisodeGroup(self.solved.game.task(), tuple(trajectory.value for trajectory in chosen))
        reseeded_episodes = [replace(episode, seed=int(self._rng.integers(2**62))) for episode in group.episodes]
        reseeded = EpisodeGroup(group.task, tuple(reseeded_episodes))
        with override_draws(pick_index):
            replays = request_replays(self.assigner, group)
            if request_replays(self.assigner, reseeded) != replays:
                raise _NotEnumerable
            outcomes = [
                self._replays.outcomes_of(pick, trajectory, replays)
                for pick, trajectory in zip(picks, chosen, strict=True)
            ]
            if self.joint:
                self._count_calls(math.prod(map(len, outcomes)))
                return self._mean_over_all_replays(group, reseeded, outcomes)
            self._count_calls(sum(map(len, outcomes)))
            return self._mean_by_episode(group, reseeded, outcomes)

    def _count_calls(self, calls: int) -> None:
        self.calls += calls
        if self.calls > self.max_outcomes:
            raise _NotEnumerable

    def _mean_by_episode(
        self, group: EpisodeGroup, reseeded: EpisodeGroup, outcomes: Sequence[list[_ReplayOutcome]]
    ) -> _MeanAdvantages:
        """Enumerate the replays of one episode at a time, with a random outcome of the other episodes' replays."""
        mean = _MeanAdvantages()
        for position, episode in enumerate(group.episodes):
            for index, outcome in enumerate(outcomes[position]):
                replayed = self._complete(outcomes, position, outcome)
                credit = assign(self.assigner, group, replayed)
                if index % _CHECK_EVERY == 0:
                    records = [episode, *outcome.records.values()]
                    if _differ(credit, assign(self.assigner, reseeded, replayed), records):
                        raise _NotEnumerable
                    redrawn = self._complete(outcomes, position, outcome)
                    if _differ(credit, assign(self.assigner, group, redrawn), records):
                        raise _ReadsOtherReplays
                mean.add(credit, [episode], outcome.records, outcome.probability)
        return mean

    def _complete(
        self, outcomes: Sequence[list[_ReplayOutcome]], position: int, outcome: _ReplayOutcome
    ) -> dict[Replay, EpisodeRecord]:
        """Return this outcome of one episode's replays, and a random outcome of every other episode's."""
        replayed = dict(outcome.records)
        for k, episode_outcomes in enumerate(outcomes):
            if k != position:
                weights = np.array([each.probability for each in episode_outcomes])
                drawn = int(self._rng.choice(len(episode_outcomes), p=weights / weights.sum()))
                replayed.update(episode_outcomes[drawn].records)
        return replayed

    def _mean_over_all_replays(
        self, group: EpisodeGroup, reseeded: EpisodeGroup, outcomes: Sequence[list[_ReplayOutcome]]
    ) -> _MeanAdvantages:
        """Enumerate the replays of all episodes together."""
        mean = _MeanAdvantages()
        for index, combination in enumerate(itertools.product(*outcomes)):
            replayed: dict[Replay, EpisodeRecord] = {}
            for outcome in combination:
                replayed.update(outcome.records)
            credit = assign(self.assigner, group, replayed)
            if index % _CHECK_EVERY == 0:
                records = [*group.episodes, *replayed.values()]
                if _differ(credit, assign(self.assigner, reseeded, replayed), records):
                    raise _NotEnumerable
            mean.add(credit, group.episodes, replayed, math.prod(outcome.probability for outcome in combination))
        return mean


def _differ(first: Credit, second: Credit, records: Iterable[EpisodeRecord]) -> bool:
    """Return whether two credits give some token of these records different advantages."""
    for record in records:
        for key, turn in record.turns():
            num_ids = len(turn.generation.token_ids)
            gap = np.abs(first.weighted(key, num_ids) - second.weighted(key, num_ids))
            if gap.max(initial=0.0) > 1e-12:
                return True
    return False


def _split_precision(advantages: Mapping[TurnKey, Floats]) -> tuple[Credit, Credit]:
    """Return two credits that add up to these advantages, because a batch stores advantages in single precision."""
    rounded = {key: advantage.astype(np.float32).astype(np.float64) for key, advantage in advantages.items()}
    remainder = {key: advantage - rounded[key] for key, advantage in advantages.items()}
    return _to_credit(rounded), _to_credit(remainder)


def _to_credit(advantages: Mapping[TurnKey, Floats]) -> Credit:
    return Credit({key: tuple(advantage.tolist()) for key, advantage in advantages.items()})
