"""What a reward schedule may look at in the episodes of a step: costs, and reward terms, by name."""

from __future__ import annotations

from collections.abc import Sequence

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.record import EpisodeGroup, cost_measures


def measured(name: str, groups: Sequence[EpisodeGroup], who: str) -> list[float]:
    """A cost of `record.Cost`, or the unweighted value of a reward term, of every episode.

    Raises `ConfigError` if it is neither.
    """
    found = []
    for episode in (episode for group in groups for episode in group.episodes):
        terms = episode.reward_terms or {}
        if name in cost_measures():
            found.append(float(getattr(episode.cost, name)))
        elif name in terms:
            found.append(terms[name])
        else:
            known = [*cost_measures(), *terms]
            raise ConfigError(
                f"reward schedule '{who}' measures {name!r}; expected a cost or a term of the reward, one of "
                f"{', '.join(known)}.{did_you_mean(name, known)}"
            )
    return found
