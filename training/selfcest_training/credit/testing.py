"""The conformance suite of credit schemes: what every scheme must do, whatever it computes.

    from selfcest_training.credit.testing import check_assigner

    def test_my_scheme() -> None:
        check_assigner(MyScheme())

It needs no model and takes two seconds at most. Whether a scheme's gradient is right is the laboratory's question.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from selfcest_env.errors import CreditError
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.replay import Replay
from selfcest_env.seeding import stream_seed
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    Replayed,
    TurnInternals,
    overrides,
)
from selfcest_training.credit.checks import ask, ask_more, assign_step, fit
from selfcest_training.credit.registry import check_scheme
from selfcest_training.credit.synthetic import NULL, World, mirrored, mirrored_key, mirrored_replay, trees_by_clone

_SEEDS = 120  # of the episodes, under which a scheme is asked whom it replays
_STANDARD_ERRORS = 5.0  # a mean further from 0 than this is no accident

_Tree = tuple[AgentRecord, ...]
_ByTurn = Mapping[TurnKey, np.ndarray]


class ConformanceError(CreditError, AssertionError):
    """A scheme that breaks a rule; the message says which, and where."""


def check_assigner(assigner: CreditAssigner, *, seeds: int = 60) -> None:
    """Check a scheme on made-up groups with series, nesting, several turns and failed clones.

    Args:
        assigner: the scheme with its options; it is not changed.
        seeds: groups that means are taken over.

    Raises:
        CreditError: a turn left out, a number that is not finite, a replay that cannot be played.
        ConformanceError: any other rule; also an AssertionError.
        PlugInError: something is not declared on the class.
    """
    check_scheme(type(assigner), "credit scheme")
    assigner = copy.deepcopy(assigner)
    worlds = [World(seed) for seed in range(seeds)]
    _check(assigner, worlds)
    if assigner.internals or overrides(assigner, "fit"):
        learned = copy.deepcopy(assigner)
        for world in worlds[1:4]:
            fit(learned, [world.group], _internals(world.group))
        _remembers(assigner, learned, worlds[0])
        _check(learned, worlds)


def _check(assigner: CreditAssigner, worlds: list[World]) -> None:
    for check in (_changes_nothing, _is_deterministic, _keeps_groups_apart, _works_offline):
        check(assigner, worlds[0], worlds[1])
    if assigner.promise is not Promise.BIASED:
        _asks_without_looking_at_rewards(assigner, worlds[0])
        _asks_without_looking_at_consequences(assigner, worlds[0])
    credits = [_by_turn(world.group, _credit(assigner, world)) for world in worlds]
    _treats_clones_alike(assigner, worlds, credits)
    if assigner.null_player:
        _gives_nothing_for_nothing(assigner, worlds, credits)


def _credit(assigner: CreditAssigner, world: World) -> Credit:
    return _assign(assigner, world.group, _played(assigner, world))


def _played(assigner: CreditAssigner, world: World) -> Replayed:
    """What comes of both rounds of replays."""
    first = world.play(ask(assigner, world.group))
    return {**first, **world.play(ask_more(assigner, world.group, first), first)}


def _assign(assigner: CreditAssigner, group: EpisodeGroup, replayed: Replayed) -> Credit:
    internals = _internals(group) if assigner.internals else None
    (credit,) = assign_step(assigner, [group], [replayed], internals)
    return credit


def _internals(group: EpisodeGroup) -> dict[TurnKey, TurnInternals]:
    """Made up from how long turns are, so that who is called what makes no difference."""
    found = {}
    for episode in group.episodes:
        for key, turn in episode.turns():
            length = len(turn.generation.token_ids)
            before = np.array([len(turn.generation.prompt_ids), 1.0, key.turn], dtype=np.float32)
            tokens = np.full(length, 0.5, dtype=np.float32)
            found[key] = TurnInternals(before, before + length, -tokens, tokens)
    return found


def _require(right: bool, assigner: CreditAssigner, rule: str) -> None:
    if not right:
        raise ConformanceError(f"credit scheme '{assigner.name}': {rule}")


def _is_deterministic(assigner: CreditAssigner, world: World, _: World) -> None:
    first, again = (copy.deepcopy(assigner) for _ in range(2))
    group = world.group
    asked = ask(first, group)
    rule = "the same group gives other {} the second time; draw from streams keyed by the episodes' seeds"
    _require(asked == ask(again, group), assigner, rule.format("replays"))
    played = world.play(asked)
    more = ask_more(first, group, played)
    _require(more == ask_more(again, group, played), assigner, rule.format("second replays"))
    records = {**played, **world.play(more, played)}
    credit = _assign(first, group, records)
    backwards = dict(reversed(records.items()))
    _require(credit == _assign(again, group, backwards), assigner, rule.format("advantages"))


def _keeps_groups_apart(assigner: CreditAssigner, one: World, other: World) -> None:
    """A step asks for all its groups first and assigns afterwards; neither may leave a trace in the other."""
    alone = [_credit(copy.deepcopy(assigner), world) for world in (one, other)]
    shared, worlds = copy.deepcopy(assigner), (one, other)
    asked = [ask(shared, world.group) for world in worlds]
    first = [world.play(replays) for world, replays in zip(worlds, asked, strict=True)]
    more = [ask_more(shared, world.group, records) for world, records in zip(worlds, first, strict=True)]
    played = [
        {**records, **world.play(replays, records)} for world, records, replays in zip(worlds, first, more, strict=True)
    ]
    together = [_assign(shared, world.group, records) for world, records in zip(worlds, played, strict=True)]
    rule = "advantages of a group depend on the other groups of the batch; keep no state between calls"
    _require(alone == together, assigner, rule)


def _changes_nothing(assigner: CreditAssigner, world: World, _: World) -> None:
    group = world.group
    unasked = copy.deepcopy(group)
    records = _played(assigner, world)
    before = unasked, copy.deepcopy(records)
    _assign(assigner, group, records)
    _require((group, records) == before, assigner, "it changed the records it was given; copy what you change")


def _remembers(assigner: CreditAssigner, learned: CreditAssigner, world: World) -> None:
    """What it has learned is all in its state: another of its kind that is given it says the same."""
    other = copy.deepcopy(assigner)
    other.load_state_dict(learned.state_dict())
    rule = "given the state_dict of what has learned it gives other advantages; put all that it learns into it"
    _require(_credit(other, world) == _credit(learned, world), assigner, rule)


def _works_offline(assigner: CreditAssigner, world: World, _: World) -> None:
    group = world.group
    records = _played(assigner, world)

    def stored(record: EpisodeRecord) -> EpisodeRecord:
        return from_json(to_json(record))

    read = EpisodeGroup(group.task, tuple(map(stored, group.episodes)))
    again = _assign(assigner, read, {replay: stored(record) for replay, record in records.items()})
    rule = "stored and read again, the same records give other advantages; use nothing but what records hold"
    _require(again == _assign(assigner, group, records), assigner, rule)


def _asks_without_looking_at_rewards(assigner: CreditAssigner, world: World) -> None:
    group = world.group

    def rewarded(score: Callable[[int], float]) -> EpisodeGroup:
        terms = ({"score": score(k)} for k in range(len(group.episodes)))
        return EpisodeGroup(group.task, tuple(map(_with_rewards, group.episodes, terms)))

    groups = rewarded(float), rewarded(lambda k: -float(k)), rewarded(lambda _: 0.0)
    first = world.play(ask(assigner, group))
    asked = {(ask(assigner, one), ask_more(assigner, one, first)) for one in groups}
    rule = f"it promises to be {assigner.promise} but chooses its replays by the rewards, which biases the baseline"
    _require(len(asked) == 1, assigner, rule)


def _asks_without_looking_at_consequences(assigner: CreditAssigner, world: World) -> None:
    """A clone's replays must not depend on what its own first turn did or caused; other episodes may matter."""
    rule = (
        f"it promises to be {assigner.promise}, but whether {{}} is replayed, or with what in its place, depends on "
        "what that clone did or caused, which biases the baseline; replay a share of the clones by coin(share, "
        "episode, agent_id), not a number of them"
    )
    for clone, (smallest, *others) in trees_by_clone().items():
        for interventions_of in (_first_interventions, _second_interventions):
            expected = interventions_of(assigner, world, clone, smallest, smallest)
            for tree in others:
                interventions = interventions_of(assigner, world, clone, tree, smallest)
                for what in set().union(*expected, *interventions):
                    pairs = zip(expected, interventions, strict=True)
                    differences = [np.array([float(what in after) - float(what in before)]) for before, after in pairs]
                    _require(_is_zero(differences), assigner, rule.format(clone))


def _first_interventions(
    assigner: CreditAssigner, world: World, clone: AgentId, tree: _Tree, smallest: _Tree
) -> list[set[str]]:
    """Per seed, what the first replays do to the clone from its first turn on, in an episode with this tree."""
    by_seed: list[set[str]] = []
    for number in range(_SEEDS):
        group = _group_with(world, number, (tree, smallest))
        by_seed.append(_done_to(clone, group.episodes[0], ask(assigner, group)))
    return by_seed


def _second_interventions(
    assigner: CreditAssigner, world: World, clone: AgentId, tree: _Tree, smallest: _Tree
) -> list[set[str]]:
    """The same of the second replays, where this tree came of a first replay that sampled the clone's parent anew."""
    by_seed: list[set[str]] = []
    for number in range(_SEEDS if overrides(assigner, "more_replays") and clone.depth > 1 else 0):
        group = _group_with(world, number, (smallest, smallest))
        episode = group.episodes[0]
        first: dict[Replay, EpisodeRecord] = {}
        of_parent: list[EpisodeRecord] = []
        for replay in ask(assigner, group):
            if replay.episode_id != episode.episode_id:
                continue
            what = next((what for agent_id, what in replay.interventions if agent_id == clone.parent), None)
            is_parent_anew = what is not None and not what.absent and what.turn == 0
            first[replay] = replace(episode, episode_id=str(replay), agents=tree if is_parent_anew else smallest)
            of_parent += [first[replay]] if is_parent_anew else []
        asked = ask_more(assigner, EpisodeGroup(group.task, (episode,)), first)
        by_seed.append({what for record in of_parent for what in _done_to(clone, record, asked)})
    return by_seed


def _group_with(world: World, number: int, trees: Sequence[_Tree]) -> EpisodeGroup:
    """Episodes of the world with these trees of agents, and seeds of their own for each number."""
    episodes = [
        replace(episode, agents=tree, seed=stream_seed("share", number, k), parts={}, by_turn={})
        for k, (episode, tree) in enumerate(zip(world.group.episodes, trees, strict=False))
    ]
    return EpisodeGroup(world.group.task, tuple(episodes))


def _done_to(clone: AgentId, episode: EpisodeRecord, asked: Sequence[Replay]) -> set[str]:
    """What replays of an episode, or of a replay, do to a clone from its first turn on."""
    interventions: set[str] = set()
    for replay in asked:
        what = dict(replay.interventions).get(clone)
        # `again` plays on from a turn that exists or not by what the clone caused, as the join of `paired` does.
        is_from_start = what is not None and what.turn == 0 and what.kind != "again"
        if replay.episode_id == episode.episode_id and is_from_start:
            interventions.add(str(what))
    return interventions


def _with_rewards(episode: EpisodeRecord, terms: Mapping[str, float]) -> EpisodeRecord:
    return replace(episode, reward_terms=terms)


def _treats_clones_alike(assigner: CreditAssigner, worlds: list[World], credits: list[_ByTurn]) -> None:
    """Two siblings under each other's names get each other's credit; a seeded choice may only do so on average."""
    differences: dict[TurnKey, list[np.ndarray]] = {}
    choice = False
    for world, credit in zip(worlds, credits, strict=True):
        group = world.group
        mirror = EpisodeGroup(group.task, tuple(map(mirrored, group.episodes)))
        asked, asked_mirror = ask(assigner, group), ask(assigner, mirror)
        choice |= set(map(mirrored_replay, asked)) != set(asked_mirror)
        other = _by_turn(mirror, _assign(assigner, mirror, _reflected(assigner, world, mirror, asked_mirror)))
        for key, numbers in credit.items():
            differences.setdefault(_without_seed(key), []).append(other[mirrored_key(key)] - numbers)
    for key, found in differences.items():
        rule = f"{key}: with two siblings under each other's ids its credit is another; ids must not matter"
        _require(_is_zero(found) if choice else bool(np.abs(found).max() < 1e-9), assigner, rule)


def _reflected(
    assigner: CreditAssigner, world: World, mirror: EpisodeGroup, asked: Sequence[Replay]
) -> dict[Replay, EpisodeRecord]:
    """What comes of both rounds of replays of the mirrored group; `asked` is the first."""
    names: dict[str, str] = {}
    played: dict[Replay, EpisodeRecord] = {}

    def reflect(replays: Sequence[Replay]) -> dict[Replay, EpisodeRecord]:
        ours = {replay: mirrored_replay(replay, names) for replay in replays}
        played.update(world.play(list(ours.values()), played))
        names.update({str(replay): str(own) for replay, own in ours.items()})
        return {replay: replace(mirrored(played[own]), episode_id=str(replay)) for replay, own in ours.items()}

    first = reflect(asked)
    return {**first, **reflect(ask_more(assigner, mirror, first))}


def _gives_nothing_for_nothing(assigner: CreditAssigner, worlds: list[World], credits: list[_ByTurn]) -> None:
    """Of a scheme that asks for replays, those clones are looked at that it asked replays for."""
    found: dict[TurnKey, list[np.ndarray]] = {}
    for world, credit in zip(worlds, credits, strict=True):
        asked = ask(assigner, world.group)
        chosen = {(replay.episode_id, agent_id) for replay in asked for agent_id, _ in replay.interventions}
        for key, numbers in credit.items():
            if key.agent_id in NULL and (not asked or (key.episode_id, key.agent_id) in chosen):
                found.setdefault(_without_seed(key), []).append(numbers)
    for key, samples in found.items():
        mean = float(np.mean([numbers[1:] for numbers in samples]))
        rule = f"{key}: it declares null_player, but a clone that never matters gets {mean:+.3f} on average"
        _require(_is_zero(samples), assigner, rule)


def _without_seed(key: TurnKey) -> TurnKey:
    """The same turn of the same episode in every world."""
    return replace(key, episode_id=key.episode_id.partition(".")[2])


def _by_turn(group: EpisodeGroup, credit: Credit) -> _ByTurn:
    """Per turn one number for whether it is excluded, and one per token."""
    return {
        key: np.array(
            [
                float(key in credit.excluded),
                *credit.weighted(key, len(turn.generation.token_ids)),
            ]
        )
        for episode in group.episodes
        for key, turn in episode.turns()
    }


def _is_zero(samples: list[np.ndarray]) -> bool:
    """Whether independent draws may have a mean of 0, number by number."""
    values = np.array(samples)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return bool((np.abs(values.mean(axis=0)) <= _STANDARD_ERRORS * error + 1e-9).all())
