"""What infrastructure failures do to a step: a group is played again whole, else dropped and counted.

Another try has the same names and so the same seeds. An episode never stands for one that failed, and no group is
learned from in part: what fails is rarely random (long episodes make more requests), and a group baseline over the
episodes that survived would take that for credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from selfcest_agents.replay import PlayedReplay
from selfcest_agents.rollout import Unplayed, UnplayedError, all_of, what_played
from selfcest_env.errors import InfrastructureError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay, root_episode
from selfcest_env.stored import stored_as
from selfcest_training.credit import CreditAssigner
from selfcest_training.stages.crediting import GroupReplays, PlayReplays, counterfactuals


@stored_as(dropped_groups="dropped_groups", failures="failures", tokens="tokens", cause="cause")
@dataclass(frozen=True)
class Outages:
    """What they took from a step.

    Attributes:
        dropped_groups: that could not be played, or replayed for their credit, in all tries.
        failures: episodes and replays that could not be played or judged, in any try.
        tokens: sampled in tries that were given up; they are paid for, and nobody learns from them.
        cause: of the last failure.
    """

    dropped_groups: int = 0
    failures: int = 0
    tokens: int = 0
    cause: str = ""

    @classmethod
    def of(cls, unplayed: Sequence[Unplayed]) -> Outages:
        """Those of one try."""
        tokens = sum(lost.generated_tokens for lost in unplayed)
        return cls(0, len(unplayed), tokens, str(unplayed[-1].cause) if unplayed else "")

    def __add__(self, later: Outages) -> Outages:
        return Outages(
            self.dropped_groups + later.dropped_groups,
            self.failures + later.failures,
            self.tokens + later.tokens,
            later.cause or self.cause,
        )

    def check(self, step: int, asked: int, most: float) -> None:
        """Raise `InfrastructureError` if more than the share `most` of the step's groups was dropped, or all were."""
        if self.dropped_groups > most * asked or 0 < self.dropped_groups == asked:
            raise InfrastructureError(
                f"step {step}: {self.dropped_groups} of {asked} groups were lost to infrastructure failures, and "
                f"rl.max_dropped_share is {most:g}; the last: {self.cause}. Look at that server or machine, "
                "then go on with --resume"
            )

    def metrics(self) -> dict[str, float]:
        return {
            "dropped_groups": self.dropped_groups,
            "infrastructure_failures": self.failures,
            "lost_tokens": self.tokens,
        }


NO_OUTAGES = Outages()


def replay_groups(
    assigner: CreditAssigner, groups: Sequence[EpisodeGroup], play: PlayReplays, tries: int
) -> tuple[list[EpisodeGroup], tuple[GroupReplays, ...], Outages]:
    """`counterfactuals` of those groups of which all can be played in so many tries: the groups, theirs, and the rest.

    A group's own episodes are not played again: by their seeds they would be the same.
    """
    patient, kept, dropped = _Patient(play, tries), list(groups), NO_OUTAGES
    while True:
        replayed, unplayed = what_played(partial(counterfactuals, assigner, kept, patient))
        if not unplayed:
            return kept, replayed, patient.outages + dropped
        lost = {root_episode(one.episode_id) for one in unplayed}
        hit = [group for group in kept if any(episode.episode_id in lost for episode in group.episodes)]
        if not hit:  # a player that names what it has not been asked for
            raise UnplayedError.of(replayed, unplayed)
        names = {episode.episode_id for group in hit for episode in group.episodes}
        tokens = sum(episode.cost.generated_tokens for group in hit for episode in group.episodes)
        tokens += sum(of.generated_tokens for one, of in patient.found.items() if root_episode(one.episode_id) in names)
        dropped += Outages(len(hit), tokens=tokens)
        kept = [group for group in kept if group not in hit]


class _Patient:
    """Plays replays in so many tries, and none twice."""

    def __init__(self, play: PlayReplays, tries: int) -> None:
        self._play, self._tries = play, tries
        self.found: dict[Replay, PlayedReplay] = {}
        self.outages = NO_OUTAGES

    def __call__(self, episodes: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        unplayed: tuple[Unplayed, ...] = ()
        for _ in range(self._tries):
            missing = [replay for replay in dict.fromkeys(replays) if replay not in self.found]
            if not missing:
                break
            found, unplayed = what_played(partial(self._play, episodes, missing))
            self.found.update(found)
            self.outages += Outages.of(unplayed)
        return all_of({replay: self.found[replay] for replay in replays if replay in self.found}, unplayed)
