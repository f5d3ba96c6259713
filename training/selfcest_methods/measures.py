"""The measures of episodes that a reward schedule may use: costs and reward terms, by name."""

from __future__ import annotations

from collections.abc import Sequence

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.record import EpisodeGroup, EpisodeRecord, cost_measures


def measure_episodes(name: str, groups: Sequence[EpisodeGroup], schedule: str) -> list[float]:
    """Return a cost of `record.Cost`, or the unweighted value of a reward term, of every episode.

    Args:
        name: name of the cost or term.
        groups: scored episodes.
        schedule: name of the reward schedule, for the message.

    Raises:
        ConfigError: the name is neither a cost nor a term.
    """
    values: list[float] = []
    for group in groups:
        values += [_measure(name, episode, schedule) for episode in group.episodes]
    return values


def _measure(name: str, episode: EpisodeRecord, schedule: str) -> float:
    terms = episode.reward_terms or {}
    if name in cost_measures():
        return float(getattr(episode.cost, name))
    if name in terms:
        return terms[name]
    names = [*cost_measures(), *terms]
    raise ConfigError(
        f"reward schedule '{schedule}' measures {name!r}, which is neither a cost nor a term of the reward."
        f"{did_you_mean(name, names)} Expected one of {', '.join(names)}"
    )
