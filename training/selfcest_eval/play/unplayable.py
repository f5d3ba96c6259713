"""Retries of failed episodes, and the instances that could not be played in any attempt.

Such an instance does not count as a wrong answer. It is left out of every strategy, so that comparisons stay paired.
Failures are rarely random, since long episodes call a server more often. So the report also has bounds of the accuracy
over all instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from selfcest_agents.player import Player, PolicyWrapper
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.retries import Attempt, Retries
from selfcest_agents.rollout import RolloutRequest, collect_failures, raise_failures
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import Result, ResultKey, Unplayable
from selfcest_eval.play.strategies import quote_name


class RetryingPlayer(Player):
    """A player that retries the episodes of another player after infrastructure failures.

    Args:
        player: the other player; it is not closed with this one.
        max_retries: number of retries of an episode, with the same seed.
    """

    def __init__(self, player: Player, max_retries: int) -> None:
        self._player = player
        self._retries = Retries[tuple[str, float], EpisodeRecord](max_retries)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: PolicyWrapper | None = None,
    ) -> list[EpisodeRecord]:
        request_by_key = {(request.episode_id, temperature): request for request in requests}

        def attempt(keys: list[tuple[str, float]]) -> Attempt[tuple[str, float], EpisodeRecord]:
            missing = [request_by_key[key] for key in keys]
            records, failed = collect_failures(partial(self._player.play, missing, temperature, weights, wrap))
            return Attempt({(record.episode_id, temperature): record for record in records}, failed)

        keys = [(request.episode_id, temperature) for request in requests]
        record_by_key, failed = collect_failures(partial(self._retries.play, keys, attempt))
        return raise_failures([record_by_key[key] for key in keys if key in record_by_key], failed)

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        return self._player.play_replays(factual, replays, temperature)

    def close(self) -> None:
        """Do nothing: the other player is closed by its owner."""


def drop_unplayable(results: Iterable[Result], unplayable: Sequence[Unplayable]) -> list[Result]:
    """Return the results on instances that every strategy has played, at every budget and with every seed."""
    left_out = {_instance(item.place) for item in unplayable}
    return [result for result in results if _instance(result.place) not in left_out]


def describe_unplayable(results: Sequence[Result], unplayable: Sequence[Unplayable]) -> list[str]:
    """Return lines on each eval set with instances that are left out.

    The first line has their number. The others have, for each strategy, the number of its unplayable instances and the
    bounds of its accuracy over all instances.
    """
    lines = []
    policies = [result for result in results if result.place.style is None]
    for eval_set in dict.fromkeys(item.place.eval_set for item in unplayable):
        name = " ".join(eval_set)
        failed = [item for item in unplayable if item.place.eval_set == eval_set]
        failed_tasks = {item.place.task_id for item in failed}
        played_tasks = {result.place.task_id for result in policies if result.place.eval_set == eval_set}
        lines.append(
            f"{name}: {len(failed_tasks)} of {len(failed_tasks | played_tasks)} instances could not be played and are "
            f"left out of every strategy, the first because {failed[0].why}"
        )
        places = [*(result.place for result in policies), *(item.place for item in failed)]
        for strategy, budget in dict.fromkeys((p.strategy, p.budget) for p in places if p.eval_set == eval_set):
            where = (eval_set, strategy, budget)
            grades = [result.grade.correct for result in policies if _where(result.place) == where]
            num_failed = sum(_where(item.place) == where for item in failed)
            num_instances = len(grades) + num_failed
            # All failed instances wrong, and all of them right.
            lowest = sum(grades) / num_instances
            highest = (sum(grades) + num_failed) / num_instances
            accuracy = f"{lowest:.3f}"
            if num_failed:
                accuracy += f" to {highest:.3f}, were they all wrong or all right"
            lines.append(
                f"{name}, {at_most(budget)}, {quote_name(strategy)}: {num_failed} of {num_instances} not played; "
                f"accuracy over all instances {accuracy}"
            )
    return lines


def _instance(place: ResultKey) -> tuple[str, str, str]:
    return *place.eval_set, place.task_id


def _where(place: ResultKey) -> tuple[tuple[str, str], str, int | None]:
    return place.eval_set, place.strategy, place.budget
