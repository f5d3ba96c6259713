"""The measures of episodes that a reward schedule may use: costs and reward terms, by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.record import EpisodeGroup, EpisodeRecord, cost_measures


def measure_episodes(name: str, groups: Sequence[EpisodeGroup]) -> list[float]:
    """Return a cost of `record.Cost`, or the unweighted value of a reward term, of every episode.

    Args:
        name: name of the cost or term.
        groups: scored episodes.

    Raises:
        ConfigError: the name is neither a cost nor a term.
    """
    values: list[float] = []
    for group in groups:
        values += [_measure(name, episode) for episode in group.episodes]
    return values


def check_measure(name: str, terms: Collection[str]) -> None:
    """Raise `ConfigError` if a name is neither a cost of `record.Cost` nor one of these reward terms."""
    names = [*cost_measures(), *terms]
    if name not in names:
        raise ConfigError(
            f"a reward schedule measures {name!r}, which is neither a cost nor a term of the reward."
            f"{did_you_mean(name, names)} Expected one of {', '.join(names)}"
        )


def _measure(name: str, episode: EpisodeRecord) -> float:
    terms = episode.reward_terms or {}
    check_measure(name, terms)
    return float(getattr(episode.cost, name)) if name in cost_measures() else terms[name]
