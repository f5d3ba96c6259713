"""`downsampled` takes baselines from the whole group and trains on a balanced part of it, after Reinforce-Ada (arXiv
2510.04996). If it works, hard tasks contribute gradient with the compute of a small group.

    A as the scheme `scheme` has it of all N;   n episodes train, half right and half wrong where there are as many;
    all turns of the others are excluded;   reweigh: of s right ones among N, k of which train, each weighs s n / (k N)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import root_episode
from selfcest_env.structure import Count
from selfcest_training.credit import checks
from selfcest_training.credit.base import Credit, Promise, Replayed, succeeded
from selfcest_training.credit.chance import draw_index
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme


@dataclass(frozen=True)
class DownsampledOptions(WrapperOptions):
    size: Count = 8
    term: str = "correct"
    reweigh: bool = False


class Downsampled(WrapperScheme):
    """Options: `scheme`, `{name, options}` or null (default) for `rloo`; `size` (8), n; `term` (`correct`), the term of
    the reward that is above 0 for a right episode; `reweigh` (false)."""

    name: ClassVar[str] = "downsampled"
    formula: ClassVar[str] = "as `scheme` over the whole group; n of it train, half of them right"
    source: ClassVar[str] = "Reinforce-Ada, arXiv 2510.04996"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    default: ClassVar[str] = "rloo"

    Options = DownsampledOptions
    options: DownsampledOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        factors = self._factors(group)
        advantage = {key: value for key, value in credit.advantage.items() if root_episode(key.episode_id) in factors}
        weight = {key: value for key, value in credit.weight.items() if key in advantage}
        if self.options.reweigh:
            weight = {key: weight.get(key, 1.0) * factors[root_episode(key.episode_id)] for key in advantage}
        every = {key for episode in group.episodes for key, _ in episode.turns()}
        share = len(factors) / len(group.episodes)
        diagnostics = {**credit.diagnostics, "trained_share": share}
        return Credit(advantage, frozenset(every - advantage.keys()), diagnostics, weight)

    def _factors(self, group: EpisodeGroup) -> dict[str, float]:
        """The episodes that train, each with the factor that lets it stand for those of its outcome."""
        sides: tuple[list[EpisodeRecord], list[EpisodeRecord]] = ([], [])
        for episode in group.episodes:
            sides[not succeeded(episode, self.options.term)].append(episode)
        total, size = len(group.episodes), min(self.options.size, len(group.episodes))
        right = min(len(sides[0]), max(size // 2, size - len(sides[1])))
        factors = {}
        for side, (episodes, count) in enumerate(zip(sides, (right, size - right), strict=True)):
            left = list(episodes)
            for k in range(count):
                i = draw_index((1 / len(left),) * len(left), "who trains", group.episodes[0], side * total + k)
                factors[left.pop(i).episode_id] = len(episodes) * size / (count * total)
        return factors
