"""Instances that a server's fault left unplayed, however often they were tried.

They are no wrong answers. Every strategy is measured without them, so that comparisons stay paired; and since what
fails is rarely random (the long ones ask more often), it is said beside what an accuracy over all instances could be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from selfcest_agents.player import Player, Wrapper
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.retries import Retries, Try
from selfcest_agents.rollout import RolloutRequest, all_of, collect_failures
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import Result, ResultKey, Unplayable


class RetryingPlayer(Player):
    """Asks another player again for episodes that an infrastructure failure hit, and for none twice.

    Args:
        player: who plays; it is not closed with this one.
        max_retries: further tries of an episode, by the same seed.
    """

    def __init__(self, player: Player, max_retries: int) -> None:
        self._player = player
        self._retries = Retries[tuple[str, float], EpisodeRecord](max_retries)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: Wrapper | None = None,
    ) -> list[EpisodeRecord]:
        request_of = {(request.episode_id, temperature): request for request in requests}

        def one_try(missing: list[tuple[str, float]]) -> Try[tuple[str, float], EpisodeRecord]:
            of_missing = [request_of[key] for key in missing]
            records, failed = collect_failures(partial(self._player.play, of_missing, temperature, weights, wrap))
            return Try({(record.episode_id, temperature): record for record in records}, failed)

        keys = [(request.episode_id, temperature) for request in requests]
        results, failed = collect_failures(partial(self._retries.play, keys, one_try))
        return all_of([results[key] for key in keys if key in results], failed)

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        return self._player.play_replays(factual, replays, temperature)

    def close(self) -> None:
        """Nothing of its own is open."""


def leave_out(results: Iterable[Result], unplayable: Sequence[Unplayable]) -> list[Result]:
    """The results on instances that every strategy could be played on, at every budget with every seed."""
    gone = {_instance(one.place) for one in unplayable}
    return [result for result in results if _instance(result.place) not in gone]


def unplayable_lines(
    results: Sequence[Result], unplayable: Sequence[Unplayable], label: Callable[[str], str] = str
) -> list[str]:
    """Lines on each eval set with left-out instances: what each strategy lacks, and the bounds of its accuracy."""
    lines = []
    policies = [result for result in results if result.place.style is None]
    for eval_set in dict.fromkeys(one.place.eval_set for one in unplayable):
        name = " ".join(eval_set)
        here = [one for one in unplayable if one.place.eval_set == eval_set]
        gone = {one.place.task_id for one in here}
        there = {result.place.task_id for result in policies if result.place.eval_set == eval_set}
        lines.append(
            f"{name}: {len(gone)} of {len(gone | there)} instances could not be played and are left out of "
            f"every strategy, the first because {here[0].why}"
        )
        places = [*(result.place for result in policies), *(one.place for one in here)]
        for strategy, budget in dict.fromkeys((p.strategy, p.budget) for p in places if p.eval_set == eval_set):
            where = (eval_set, strategy, budget)
            known = [one.grade.correct for one in policies if _where(one.place) == where]
            lost = sum(_where(one.place) == where for one in here)
            low, high = sum(known) / (len(known) + lost), (sum(known) + lost) / (len(known) + lost)
            over = f"{low:.3f} to {high:.3f}, were they all wrong or all right" if lost else f"{low:.3f}"
            lines.append(
                f"{name}, {at_most(budget)}, {label(strategy)}: {lost} of {len(known) + lost} not played; "
                f"accuracy over all instances {over}"
            )
    return lines


def _instance(place: ResultKey) -> tuple[str, str, str]:
    return *place.eval_set, place.task_id


def _where(place: ResultKey) -> tuple[tuple[str, str], str, int | None]:
    return place.eval_set, place.strategy, place.budget
