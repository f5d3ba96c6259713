"""The one place where a scheme is called: what it asks and what it assigns is checked before anybody uses it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from selfcest_env.counterfactual import check_replay, is_replayed_turn
from selfcest_env.errors import CreditError, SelfcestError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, Turn
from selfcest_env.replay import Replay
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Credit, CreditAssigner, Internals, Replayed, Shapes

T = TypeVar("T")


class NotInRecordsError(CreditError):
    """Records alone do not hold what a scheme needs."""


def ask(assigner: CreditAssigner, group: EpisodeGroup) -> tuple[Replay, ...]:
    """The replays a scheme needs for a group, checked. Raises `CreditError` that names scheme, replay and rule."""
    return checked_replays(
        assigner.name, group, call_plugin(f"credit scheme '{assigner.name}'", lambda: tuple(assigner.replays(group)))
    )


def ask_more(assigner: CreditAssigner, group: EpisodeGroup, first: Replayed) -> tuple[Replay, ...]:
    """The second round of replays of a group, checked, if the scheme has one; `first` is what came of the first.

    Raises `CreditError` that names scheme, replay and rule.
    """
    asked: list[Replay] = []
    for episode in group.episodes:
        shapes = {
            replay: {agent.agent_id: len(agent.turns) for agent in record.agents}
            for replay, record in first.items()
            if replay.episode_id == episode.episode_id
        }
        asked += call_plugin(f"credit scheme '{assigner.name}'", partial(_second_round, assigner, episode, shapes))
    return tuple(replay for replay in checked_replays(assigner.name, group, asked, first) if replay not in first)


def _second_round(assigner: CreditAssigner, episode: EpisodeRecord, shapes: Shapes) -> tuple[Replay, ...]:
    return tuple(assigner.more_replays(episode, shapes))


def assign(assigner: CreditAssigner, group: EpisodeGroup, replayed: Mapping[Replay, EpisodeRecord]) -> Credit:
    """A scheme's credit, checked. Raises `CreditError` that names scheme, turn and rule."""
    _require_records_suffice(assigner)
    credit = call_plugin(f"credit scheme '{assigner.name}'", lambda: assigner.assign(group, replayed))
    return checked_credit(assigner.name, group, credit, replayed)


def assign_step(
    assigner: CreditAssigner,
    groups: Sequence[EpisodeGroup],
    replayed: Sequence[Mapping[Replay, EpisodeRecord]],
    internals: Internals | None = None,
) -> list[Credit]:
    """Credit of all groups of a step, checked. Without `internals` there are records only.

    Raises `CreditError` that names scheme, turn and rule.
    """
    if internals is None:
        _require_records_suffice(assigner)
    seen: Internals = {} if internals is None else internals
    credits = call_plugin(
        f"credit scheme '{assigner.name}'", lambda: list(assigner.assign_step(groups, replayed, seen))
    )
    if len(credits) != len(groups):
        raise CreditError(f"credit scheme '{assigner.name}' gave {len(credits)} credits for {len(groups)} groups")
    triples = zip(groups, credits, replayed, strict=True)
    return [checked_credit(assigner.name, group, credit, records) for group, credit, records in triples]


def fit(assigner: CreditAssigner, groups: Sequence[EpisodeGroup], internals: Internals | None = None) -> None:
    """After a step, let a scheme learn from it. Raises `CreditError` with the cause."""
    call_plugin(
        f"credit scheme '{assigner.name}'", lambda: assigner.fit(groups, {} if internals is None else internals)
    )


def _require_records_suffice(assigner: CreditAssigner) -> None:
    if assigner.internals:
        raise NotInRecordsError(
            f"credit scheme '{assigner.name}' looks into the policy ({', '.join(sorted(assigner.internals))}), and "
            "records alone do not hold that; train with it, or choose another scheme"
        )


def call_plugin(plugin: str, method: Callable[[], T], error: type[SelfcestError] = CreditError) -> T:
    """Call a method of a plug-in.

    Args:
        plugin: its kind and name, for the message.
        method: calls the method.
        error: the class that an exception of the plug-in is raised as. Errors of this project stay as they are.
    """
    try:
        return method()
    except SelfcestError:
        raise
    except Exception as cause:
        raise error(f"{plugin}: raised {type(cause).__name__}: {cause}") from cause


def checked_replays(
    scheme: str, group: EpisodeGroup, replays: Sequence[Replay], first: Replayed = MappingProxyType({})
) -> tuple[Replay, ...]:
    """The replays themselves, each once, if each can be played (`check_replay`): of an episode of the group, or of one
    of the `first` replays of it."""
    episodes = {episode.episode_id: episode for episode in (*group.episodes, *first.values())}
    for replay in replays:
        if not isinstance(replay, Replay):
            raise CreditError(f"credit scheme '{scheme}' asks for {replay!r}; expected a list of Replay")
        if replay.episode_id not in episodes:
            raise CreditError(
                f"credit scheme '{scheme}': replay {replay}: its group has no episode {replay.episode_id!r}; it has "
                + ", ".join(episodes)
            )
        try:
            check_replay(replay, episodes[replay.episode_id])
        except CreditError as error:
            raise CreditError(f"credit scheme '{scheme}': {error}") from error
    return tuple(dict.fromkeys(replays))


def checked_credit(
    scheme: str, group: EpisodeGroup, credit: Credit, replayed: Replayed = MappingProxyType({})
) -> Credit:
    """The credit itself, once every generated turn is in exactly one of its two parts and every number is finite.

    Turns of `replayed` may have an advantage if they were played anew.

    Raises `CreditError` that names scheme, turn or diagnostic, and rule.
    """
    if not isinstance(credit, Credit):
        raise CreditError(f"credit scheme '{scheme}' returned {type(credit).__name__}; expected Credit")
    turns = {key: turn for episode in group.episodes for key, turn in episode.turns()}
    branches = _named_branches(scheme, credit, replayed)
    named: tuple[object, ...] = (*credit.advantage, *credit.excluded)
    for name in named:
        if name not in turns and (name not in branches or name in credit.excluded):
            if any(name == key for record in replayed.values() for key, _ in record.turns()):
                raise CreditError(
                    f"credit scheme '{scheme}' excludes {name}, a turn of a replay; those take part only if they are "
                    "named in advantage: leave it out"
                )
            found = name if isinstance(name, TurnKey) else f"{name!r} (a {type(name).__name__}, no TurnKey)"
            raise CreditError(f"credit scheme '{scheme}' names {found}, which is no turn of the group it was given")
    for key in turns:
        covered = (key in credit.advantage) + (key in credit.excluded)
        if covered != 1:
            said = "is neither in advantage nor in excluded" if not covered else "is in advantage and in excluded"
            raise CreditError(f"credit scheme '{scheme}': {key} {said}; every generated turn must be in exactly one")
    for key, turn in {**turns, **branches}.items():
        value = credit.advantage.get(key, 0.0)
        length = len(turn.generation.token_ids)
        if isinstance(value, tuple) and len(value) != length:
            raise CreditError(f"credit scheme '{scheme}': {key} has {len(value)} advantages for {length} tokens")
        if not all(_is_finite(number) for number in (value if isinstance(value, tuple) else (value,))):
            raise CreditError(
                f"credit scheme '{scheme}': the advantage of {key} is {value!r}; expected a finite number, or a tuple "
                "of one per token"
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


def _named_branches(scheme: str, credit: Credit, replayed: Replayed) -> dict[TurnKey, Turn]:
    """Turns of replays that the credit names; each was played anew, or it would be trained on twice."""
    found = {}
    for replay, record in replayed.items():
        for key, turn in record.turns():
            if key in credit.advantage:
                if not is_replayed_turn(replay, record, key.agent_id, key.turn):
                    raise CreditError(
                        f"credit scheme '{scheme}' credits {key}, which the replay has kept from its episode; credit "
                        f"{TurnKey(replay.episode_id, key.agent_id, key.turn)}"
                    )
                found[key] = turn
    return found


def _is_finite(value: object) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)
