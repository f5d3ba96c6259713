"""The credit stage: ask the scheme for replays of every group, play them in one rollout, assign advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from selfcest_agents.replay import PlayedReplay
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_training.credit import (
    Credit,
    CreditAssigner,
    Internals,
    assign_step,
    request_more_replays,
    request_replays,
)

# Plays and scores replays of these episodes; equal replays are played once.
PlayReplays = Callable[[Sequence[EpisodeRecord], Sequence[Replay]], Mapping[Replay, PlayedReplay]]
# The replays of one group, in the order of the scheme's requests, the first round before the second.
GroupReplays = Mapping[Replay, PlayedReplay]


@dataclass(frozen=True)
class StepCredit:
    """The credit of a step's groups, in their order, and its cost.

    Attributes:
        credits: one per group; its diagnostics include `replays`, `replayed_tokens` and `replayed_prompt_tokens`.
        replayed: for each group the scored records of its replays.
        sampled_tokens: tokens generated for all replays.
    """

    credits: tuple[Credit, ...]
    replayed: tuple[tuple[EpisodeRecord, ...], ...]
    sampled_tokens: int

    def diagnostics(self) -> dict[str, float]:
        """Return the tokens of all replays, the share of excluded turns, and means of the scheme's diagnostics.

        A mean is over the groups that have the diagnostic.
        """
        values: dict[str, list[float]] = {}
        num_excluded = 0
        num_turns = 0
        for credit in self.credits:
            for name, value in credit.diagnostics.items():
                values.setdefault(name, []).append(value)
            num_excluded += len(credit.excluded)
            num_turns += len(credit.excluded) + len(credit.advantage)
        means = {f"credit/{name}": float(np.mean(numbers)) for name, numbers in values.items()}
        return {"replayed_tokens": self.sampled_tokens, "excluded_share": num_excluded / max(1, num_turns), **means}


def play_counterfactuals(
    assigner: CreditAssigner, groups: Sequence[EpisodeGroup], play: PlayReplays
) -> tuple[GroupReplays, ...]:
    """Play the replays that the scheme requests, in one rollout for all groups, and a second one for more replays.

    The weights that played the episodes must play the replays.

    Returns:
        The replays of each group.

    Raises:
        CreditError: a request is wrong. The message names the scheme, the replay and the rule.
    """
    episodes = list(chain.from_iterable(group.episodes for group in groups))
    requests = [request_replays(assigner, group) for group in groups]
    first_round = _play(play, episodes, requests)
    more_requests = [
        request_more_replays(assigner, group, records)
        for group, records in zip(groups, get_records(first_round), strict=True)
    ]
    # The second round may replay episodes of the first one.
    for replays in first_round:
        episodes.extend(replay.record for replay in replays.values())
    second_round = _play(play, episodes, more_requests)
    return tuple({**first, **second} for first, second in zip(first_round, second_round, strict=True))


def _play(
    play: PlayReplays, episodes: Sequence[EpisodeRecord], requests: Sequence[Sequence[Replay]]
) -> list[GroupReplays]:
    all_requests = list(chain.from_iterable(requests))
    played = play(episodes, all_requests) if all_requests else {}
    replays_by_group: list[GroupReplays] = []
    for group_requests in requests:
        replays_by_group.append({replay: played[replay] for replay in group_requests})
    return replays_by_group


def assign_step_credit(
    assigner: CreditAssigner,
    groups: Sequence[EpisodeGroup],
    replayed: Sequence[GroupReplays],
    internals: Internals | None = None,
) -> StepCredit:
    """Assign credit to every group of a step.

    Args:
        assigner: the credit scheme.
        groups: the groups to train on.
        replayed: the replays of each group, from `play_counterfactuals`.
        internals: hidden states or entropies of the policy, for a scheme that needs them.

    Raises:
        CreditError: the credit is wrong. The message names the scheme, the turn and the rule.
    """
    records = get_records(replayed)
    costs = [_cost(list(replays.values())) for replays in replayed]
    credits = []
    for credit, cost in zip(assign_step(assigner, groups, records, internals), costs, strict=True):
        credits.append(replace(credit, diagnostics={**credit.diagnostics, **cost}))
    return StepCredit(
        tuple(credits),
        tuple(tuple(records_by_replay.values()) for records_by_replay in records),
        sum(cost["replayed_tokens"] for cost in costs),
    )


def get_records(replayed: Sequence[GroupReplays]) -> list[dict[Replay, EpisodeRecord]]:
    """Return the scored records of every group's replays, without their costs."""
    records = []
    for replays in replayed:
        records.append({replay: played.record for replay, played in replays.items()})
    return records


def _cost(played: Sequence[PlayedReplay]) -> dict[str, int]:
    return {
        "replays": len(played),
        "replayed_tokens": sum(replay.generated_tokens for replay in played),
        "replayed_prompt_tokens": sum(replay.prompt_tokens for replay in played),
    }
