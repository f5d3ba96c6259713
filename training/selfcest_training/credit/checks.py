"""Calls the methods of credit schemes and checks the results. Nothing else calls a scheme."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from selfcest_env.counterfactual import check_replay, is_replayed_turn
from selfcest_env.errors import CreditError, SelfcestError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, Turn
from selfcest_env.replay import Replay
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.base import Credit, CreditAssigner, Internals, ReplayRecords, TurnCounts

T = TypeVar("T")


class NotInRecordsError(CreditError):
    """A scheme needs information that the records do not hold."""


def _label(assigner: CreditAssigner) -> str:
    return f"credit scheme '{assigner.name}'"


def request_replays(assigner: CreditAssigner, group: EpisodeGroup) -> tuple[Replay, ...]:
    """Get the replays that a scheme needs for a group. Raises `CreditError` for a replay that cannot be played."""
    replays = call_plugin(_label(assigner), lambda: tuple(assigner.replays(group)))
    return check_replays(assigner.name, group, replays)


def request_more_replays(assigner: CreditAssigner, group: EpisodeGroup, first: ReplayRecords) -> tuple[Replay, ...]:
    """Get the second round of replays that a scheme needs for a group, without those of the first round.

    Args:
        assigner: the scheme.
        group: the group.
        first: the records of the first round.

    Raises:
        CreditError: a replay cannot be played.
    """
    replays: list[Replay] = []
    for episode in group.episodes:
        turn_counts = _count_turns(episode, first)
        # The list is made inside the call, so that an error of a generator is raised as the scheme's.
        method = partial(_list_more_replays, assigner, episode, turn_counts)
        replays += call_plugin(_label(assigner), method)
    return tuple(replay for replay in check_replays(assigner.name, group, replays, first) if replay not in first)


def _count_turns(episode: EpisodeRecord, first: ReplayRecords) -> TurnCounts:
    """Count the turns of each agent in the first replays of an episode."""
    turn_counts: dict[Replay, dict[AgentId, int]] = {}
    for replay, record in first.items():
        if replay.episode_id == episode.episode_id:
            turn_counts[replay] = {agent.agent_id: len(agent.turns) for agent in record.agents}
    return turn_counts


def _list_more_replays(assigner: CreditAssigner, episode: EpisodeRecord, turn_counts: TurnCounts) -> list[Replay]:
    return list(assigner.more_replays(episode, turn_counts))


def assign(assigner: CreditAssigner, group: EpisodeGroup, replayed: Mapping[Replay, EpisodeRecord]) -> Credit:
    """Compute the credit of a group. Raises `CreditError` if the scheme returns an invalid credit."""
    _require_records_suffice(assigner)
    credit = call_plugin(_label(assigner), lambda: assigner.assign(group, replayed))
    return check_credit(assigner.name, group, credit, replayed)


def assign_step(
    assigner: CreditAssigner,
    groups: Sequence[EpisodeGroup],
    replayed: Sequence[Mapping[Replay, EpisodeRecord]],
    internals: Internals | None = None,
) -> list[Credit]:
    """Compute the credit of all groups of a step.

    Args:
        assigner: the scheme.
        groups: the groups of the step.
        replayed: the records of each group's replays.
        internals: internals of the policy; `None` if there are only records.

    Raises:
        NotInRecordsError: the scheme needs internals and there are none.
        CreditError: the scheme returns an invalid credit.
    """
    if internals is None:
        _require_records_suffice(assigner)
    step_internals: Internals = {} if internals is None else internals
    credits = call_plugin(_label(assigner), lambda: list(assigner.assign_step(groups, replayed, step_internals)))
    if len(credits) != len(groups):
        raise CreditError(
            f"credit scheme '{assigner.name}' returned {len(credits)} credits for {len(groups)} groups; expected one "
            "for each group"
        )
    checked = []
    for group, credit, records in zip(groups, credits, replayed, strict=True):
        checked.append(check_credit(assigner.name, group, credit, records))
    return checked


def fit(assigner: CreditAssigner, groups: Sequence[EpisodeGroup], internals: Internals | None = None) -> None:
    """Let a scheme learn from a step, after its credit was used. Raises `CreditError` if the scheme fails."""
    call_plugin(_label(assigner), lambda: assigner.fit(groups, {} if internals is None else internals))


def _require_records_suffice(assigner: CreditAssigner) -> None:
    if assigner.internals:
        raise NotInRecordsError(
            f"credit scheme '{assigner.name}' needs internals of the policy ({', '.join(sorted(assigner.internals))}), "
            "which records do not hold; train with it, or choose another scheme"
        )


def call_plugin(plugin: str, method: Callable[[], T], error: type[SelfcestError] = CreditError) -> T:
    """Call a method of a plug-in.

    Args:
        plugin: kind and name of the plug-in, for the message.
        method: a function that calls the method.
        error: the class in which an exception of the plug-in is wrapped. Errors of this project are not wrapped.
    """
    try:
        return method()
    except SelfcestError:
        raise
    except Exception as cause:
        raise error(f"{plugin}: raised {type(cause).__name__}: {cause}") from cause


def check_replays(
    scheme: str, group: EpisodeGroup, replays: Sequence[Replay], first: ReplayRecords = MappingProxyType({})
) -> tuple[Replay, ...]:
    """Return each replay once. Raises `CreditError` for a replay that cannot be played.

    A replay must be of an episode of the group, or of one of the `first` replays, and follow `check_replay`.
    """
    episodes = {episode.episode_id: episode for episode in (*group.episodes, *first.values())}
    for replay in replays:
        if not isinstance(replay, Replay):
            raise CreditError(f"credit scheme '{scheme}' requested {replay!r}; expected a list of Replay")
        if replay.episode_id not in episodes:
            raise CreditError(
                f"credit scheme '{scheme}': replay {replay}: its group has no episode {replay.episode_id!r}; expected "
                f"one of {', '.join(episodes)}"
            )
        try:
            check_replay(replay, episodes[replay.episode_id])
        except CreditError as error:
            raise CreditError(f"credit scheme '{scheme}': {error}") from error
    return tuple(dict.fromkeys(replays))


def check_credit(
    scheme: str, group: EpisodeGroup, credit: Credit, replayed: ReplayRecords = MappingProxyType({})
) -> Credit:
    """Return the credit if it is valid.

    Every generated turn of the group must be in exactly one of `advantage` and `excluded`, and all numbers must be
    finite. Turns of `replayed` may have an advantage if they were played again.

    Raises:
        CreditError: names the scheme, the turn or diagnostic, and the rule.
    """
    if not isinstance(credit, Credit):
        raise CreditError(f"credit scheme '{scheme}' returned {type(credit).__name__}; expected Credit")
    for name, kind in (("advantage", Mapping), ("excluded", Set), ("weight", Mapping), ("diagnostics", Mapping)):
        value: object = getattr(credit, name)
        if not isinstance(value, kind):
            expected = f"expected a {kind.__name__.lower()}"
            raise CreditError(f"credit scheme '{scheme}': {name} is of type {type(value).__name__}; {expected}")
    turns: dict[TurnKey, Turn] = {}
    for episode in group.episodes:
        turns.update(episode.turns())
    branches = _find_credited_branches(scheme, credit, replayed)
    _check_names(scheme, credit, turns, branches, replayed)
    for key in turns:
        if key in credit.advantage and key in credit.excluded:
            problem = "is in advantage and in excluded"
        elif key not in credit.advantage and key not in credit.excluded:
            problem = "is neither in advantage nor in excluded"
        else:
            continue
        raise CreditError(f"credit scheme '{scheme}': {key} {problem}; every generated turn must be in exactly one")
    for key, turn in {**turns, **branches}.items():
        advantage = credit.advantage.get(key, 0.0)
        values = advantage if isinstance(advantage, tuple) else (advantage,)
        length = len(turn.generation.token_ids)
        if isinstance(advantage, tuple) and len(advantage) != length:
            raise CreditError(
                f"credit scheme '{scheme}': {key} has {len(advantage)} advantages for {length} tokens; expected one "
                "number, or one per token"
            )
        if not all(map(_is_finite, values)):
            raise CreditError(
                f"credit scheme '{scheme}': the advantage of {key} is {advantage!r}; expected a finite number, or a "
                "tuple of one per token"
            )
    for key, factor in credit.weight.items():
        if key not in credit.advantage or not _is_finite(factor) or factor <= 0:
            raise CreditError(
                f"credit scheme '{scheme}': the weight of {key} is {factor!r}; expected a finite number above 0 for a "
                "turn that has an advantage"
            )
    for label, number in credit.diagnostics.items():
        if not _is_finite(number):
            raise CreditError(f"credit scheme '{scheme}': diagnostic {label!r} is {number!r}; expected a finite number")
    return credit


def _check_names(
    scheme: str,
    credit: Credit,
    turns: Mapping[TurnKey, Turn],
    branches: Mapping[TurnKey, Turn],
    replayed: ReplayRecords,
) -> None:
    """Raise `CreditError` if a credit names a turn that it may not name."""
    # A plug-in may use keys of any type.
    names: tuple[object, ...] = (*credit.advantage, *credit.excluded)
    for name in names:
        if name in turns or (name in branches and name not in credit.excluded):
            continue
        for record in replayed.values():
            if any(name == key for key, _ in record.turns()):
                raise CreditError(
                    f"credit scheme '{scheme}' excludes {name}, a turn of a replay; those take part only if they are "
                    "named in advantage: leave it out"
                )
        description = name if isinstance(name, TurnKey) else f"{name!r} (a {type(name).__name__}, no TurnKey)"
        raise CreditError(f"credit scheme '{scheme}' names {description}; expected a turn of the group that it credits")


def _find_credited_branches(scheme: str, credit: Credit, replayed: ReplayRecords) -> dict[TurnKey, Turn]:
    """Find the turns of replays that a credit names. Raises `CreditError` for a turn that was not played again."""
    branches = {}
    for replay, record in replayed.items():
        for key, turn in record.turns():
            if key not in credit.advantage:
                continue
            # A turn that the replay took over from its episode would be trained twice.
            if not is_replayed_turn(replay, record, key.agent_id, key.turn):
                raise CreditError(
                    f"credit scheme '{scheme}' credits {key}, which the replay has kept from its episode; credit "
                    f"{TurnKey(replay.episode_id, key.agent_id, key.turn)}"
                )
            branches[key] = turn
    return branches


def _is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)
