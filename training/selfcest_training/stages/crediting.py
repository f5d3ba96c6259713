"""The credit stage: ask every group's scheme what to replay, play it all in one rollout, then assign."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_agents.replay import PlayedReplay
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_training.credit import Credit, CreditAssigner, Internals, ask, ask_more, assign_step

# Plays and scores replays of these episodes; equal ones once.
PlayReplays = Callable[[Sequence[EpisodeRecord], Sequence[Replay]], Mapping[Replay, PlayedReplay]]
# Of one group, in the order in which its scheme asked, the first round before the second.
GroupReplays = Mapping[Replay, PlayedReplay]


@dataclass(frozen=True)
class StepCredit:
    """Credit of a step's groups, in their order, and what it took.

    Attributes:
        credits: one per group; `replays`, `replayed_tokens` and `replayed_prompt_tokens` are among the diagnostics of
            each.
        replayed: per group the scored records of its replays.
        sampled_tokens: tokens generated for all replays.
    """

    credits: tuple[Credit, ...]
    replayed: tuple[tuple[EpisodeRecord, ...], ...]
    sampled_tokens: int

    def diagnostics(self) -> dict[str, float]:
        """Means over the groups that have the number, the share of turns excluded, and the tokens of all replays."""
        names = {name: None for credit in self.credits for name in credit.diagnostics}
        rows = [credit.diagnostics for credit in self.credits]
        means = {f"credit/{name}": float(np.mean([row[name] for row in rows if name in row])) for name in names}
        excluded = sum(len(credit.excluded) for credit in self.credits)
        turns = excluded + sum(len(credit.advantage) for credit in self.credits)
        return {"replayed_tokens": self.sampled_tokens, "excluded_share": excluded / max(1, turns), **means}


def counterfactuals(
    assigner: CreditAssigner, groups: Sequence[EpisodeGroup], play: PlayReplays
) -> tuple[GroupReplays, ...]:
    """What the scheme asks for, per group, played by the weights that played the episodes: in one rollout for all
    groups, and in another if it asks once more.

    Raises `CreditError` that names scheme, replay and rule.
    """
    asked = [ask(assigner, group) for group in groups]
    episodes = [episode for group in groups for episode in group.episodes]
    first = _play(play, episodes, asked)
    more = [ask_more(assigner, *pair) for pair in zip(groups, records_of(first), strict=True)]
    second = _play(play, [*episodes, *(found.record for of_group in first for found in of_group.values())], more)
    return tuple({**one, **other} for one, other in zip(first, second, strict=True))


def _play(
    play: PlayReplays, episodes: Sequence[EpisodeRecord], asked: Sequence[Sequence[Replay]]
) -> list[GroupReplays]:
    every = [replay for replays in asked for replay in replays]
    played = play(episodes, every) if every else {}
    return [{replay: played[replay] for replay in replays} for replays in asked]


def credit_step(
    assigner: CreditAssigner,
    groups: Sequence[EpisodeGroup],
    replayed: Sequence[GroupReplays],
    internals: Internals | None = None,
) -> StepCredit:
    """Credit for every group of a step, from its episodes, what `counterfactuals` returned, and for a scheme that looks
    into the policy what it sees there.

    Raises `CreditError` that names scheme, turn and rule.
    """
    records = records_of(replayed)
    prices = [_price(list(of_group.values())) for of_group in replayed]
    credits = assign_step(assigner, groups, records, internals)
    return StepCredit(
        tuple(
            replace(credit, diagnostics={**credit.diagnostics, **price})
            for credit, price in zip(credits, prices, strict=True)
        ),
        tuple(tuple(of_group.values()) for of_group in records),
        sum(price["replayed_tokens"] for price in prices),
    )


def records_of(replayed: Sequence[GroupReplays]) -> list[dict[Replay, EpisodeRecord]]:
    """The scored records of every group's replays, without their prices."""
    return [{replay: found.record for replay, found in of_group.items()} for of_group in replayed]


def _price(played: Sequence[PlayedReplay]) -> dict[str, int]:
    return {
        "replays": len(played),
        "replayed_tokens": sum(found.generated_tokens for found in played),
        "replayed_prompt_tokens": sum(found.prompt_tokens for found in played),
    }
