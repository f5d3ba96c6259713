"""`downsampled` takes baselines from the whole group and trains on a balanced part of it.

Source: Reinforce-Ada (arXiv 2510.04996), the down-sampling of its groups. Here any scheme can give the credit, and
`reweigh` is an addition. It is the counterpart of the group filter `reinforce_ada`. Details: docs/methods.md.

    A as the scheme `scheme` has it for all N episodes; n of them train, half right and half wrong if there are as many
    reweigh: if k of s right episodes train, each of them weighs s n / (k N); wrong ones likewise

Expected effect: hard tasks contribute gradient with the compute of a small group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import root_episode
from selfcest_env.structure import Count
from selfcest_training.credit import checks
from selfcest_training.credit.base import Credit, Promise, ReadsTerm, ReplayRecords, succeeded
from selfcest_training.credit.chance import draw_index
from selfcest_training.credit.wrapping import WrapperOptions, WrapperScheme, select_turns


@dataclass(frozen=True)
class DownsampledOptions(ReadsTerm, WrapperOptions):
    """Options in addition to `scheme`.

    Attributes:
        size: n, the number of episodes that train.
        term: reward term that is above 0 for a right episode.
        reweigh: whether the trained episodes weigh as much as those of their outcome together.
    """

    size: Count = 8
    term: str = "correct"
    reweigh: bool = False


class Downsampled(WrapperScheme):
    """Takes the credit of another scheme, by default `rloo`, for a balanced part of the group only."""

    name: ClassVar[str] = "downsampled"
    formula: ClassVar[str] = "A of `scheme` over the whole group; n episodes of it train, half of them right"
    source: ClassVar[str] = "Reinforce-Ada, arXiv 2510.04996"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    default: ClassVar[str] = "rloo"

    Options = DownsampledOptions
    options: DownsampledOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = checks.assign(self.inner, group, replayed)
        factors = self._draw_episodes(group)
        advantage = {key: value for key, value in credit.advantage.items() if root_episode(key.episode_id) in factors}
        diagnostics = {"trained_share": len(factors) / len(group.episodes)}
        selected = select_turns(credit, group, advantage, diagnostics)
        if not self.options.reweigh:
            return selected
        weight = {key: selected.weight.get(key, 1.0) * factors[root_episode(key.episode_id)] for key in advantage}
        return replace(selected, weight=weight)

    def _draw_episodes(self, group: EpisodeGroup) -> dict[str, float]:
        """Return the ids of the episodes that train, each with the weight s n / (k N)."""
        right_episodes: list[EpisodeRecord] = []
        wrong_episodes: list[EpisodeRecord] = []
        for episode in group.episodes:
            outcome = right_episodes if succeeded(episode, self.options.term) else wrong_episodes
            outcome.append(episode)
        total = len(group.episodes)
        size = min(self.options.size, total)
        # Where one outcome has fewer than half of n, the other one fills up.
        num_right = min(len(right_episodes), max(size // 2, size - len(wrong_episodes)))
        weights: dict[str, float] = {}
        for first_key, episodes, count in ((0, right_episodes, num_right), (total, wrong_episodes, size - num_right)):
            candidates = list(episodes)
            for k in range(count):
                # Keys of the two outcomes differ, so that their draws are independent.
                i = draw_index((1 / len(candidates),) * len(candidates), "who trains", group.episodes[0], first_key + k)
                weights[candidates.pop(i).episode_id] = len(episodes) * size / (count * total)
        return weights
