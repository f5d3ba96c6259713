"""The conformance suite of credit schemes: the rules that every scheme must follow.

    from selfcest_training.credit.testing import check_assigner

    def test_my_scheme() -> None:
        check_assigner(MyScheme())

It needs no model and takes at most two seconds. The laboratory tests whether a scheme's gradient is right.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from selfcest_env.errors import CreditError, TrainingError
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.replay import Replay
from selfcest_env.seeding import stream_seed
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    ReplayRecords,
    TurnInternals,
    overrides,
)
from selfcest_training.credit.checks import assign_step, fit, request_more_replays, request_replays
from selfcest_training.credit.registry import check_scheme
from selfcest_training.credit.synthetic import (
    NULL_PLAYERS,
    SyntheticGroup,
    make_trees,
    mirror_key,
    mirror_record,
    mirror_replay,
)
from selfcest_training.plain_state import extract_tensors, insert_tensors

if TYPE_CHECKING:
    from torch import Tensor

# Number of seeds under which a scheme is asked for the clones that it replays.
_SEEDS = 120
# A mean further from 0 than this many standard errors is no accident.
_STANDARD_ERRORS = 5.0

_Tree = tuple[AgentRecord, ...]
# For each turn of a group, 1 or 0 for whether it is excluded, then the weighted advantage of each token.
_CreditArrays = Mapping[TurnKey, np.ndarray]


class ConformanceError(CreditError, AssertionError):
    """A scheme breaks a rule. The message names the rule and the place."""


def check_assigner(assigner: CreditAssigner, *, seeds: int = 60) -> None:
    """Check a scheme on synthetic groups with calls in series, nested and failed clones, and several turns.

    The rules:

    * Every turn has an advantage or is excluded, numbers are finite, and replays can be played.
    * Equal input gives equal output, also for records that were stored and read again.
    * The credit of a group does not depend on other groups, and records are not changed.
    * Two siblings that swap their ids swap their credit: exactly, or on average if replays are a random choice.
    * A scheme whose promise is not `biased` chooses its replays independently of rewards, and of the actions of the
      replayed clone and their consequences. So it replays a share of the clones, not a fixed number.
    * With `null_player`, a clone that never matters gets zero on average.
    * A scheme that learns gives the same credit after its `state_dict` was stored in a checkpoint and loaded.

    Args:
        assigner: the scheme with its options. It is not changed.
        seeds: number of groups over which means are computed.

    Raises:
        CreditError: a turn has no credit, a number is not finite, or a replay cannot be played.
        ConformanceError: another rule is broken; also an AssertionError.
        PlugInError: the class lacks an attribute.
    """
    check_scheme(type(assigner), "credit scheme")
    assigner = copy.deepcopy(assigner)
    synthetic_groups = [SyntheticGroup(seed) for seed in range(seeds)]
    _check_rules(assigner, synthetic_groups)
    if assigner.internals or overrides(assigner, "fit"):
        trained = copy.deepcopy(assigner)
        for synthetic in synthetic_groups[1:4]:
            fit(trained, [synthetic.group], _make_internals(synthetic.group))
        _check_state_dict(assigner, trained, synthetic_groups[0])
        _check_rules(trained, synthetic_groups)


def _check_rules(assigner: CreditAssigner, synthetic_groups: list[SyntheticGroup]) -> None:
    first, second = synthetic_groups[:2]
    _check_records_unchanged(assigner, first)
    _check_deterministic(assigner, first)
    _check_groups_independent(assigner, first, second)
    _check_stored_records(assigner, first)
    if assigner.promise is not Promise.BIASED:
        _check_replays_ignore_rewards(assigner, first)
        _check_replays_ignore_consequences(assigner, first)
    credits = [_to_arrays(synthetic.group, _assign(assigner, synthetic)) for synthetic in synthetic_groups]
    _check_siblings_symmetric(assigner, synthetic_groups, credits)
    if assigner.null_player:
        _check_null_players(assigner, synthetic_groups, credits)


def _assign(assigner: CreditAssigner, synthetic: SyntheticGroup) -> Credit:
    return _assign_group(assigner, synthetic.group, _play_replays(assigner, synthetic))


def _play_replays(assigner: CreditAssigner, synthetic: SyntheticGroup) -> ReplayRecords:
    """Play both rounds of replays that a scheme requests."""
    first = synthetic.play(request_replays(assigner, synthetic.group))
    second = synthetic.play(request_more_replays(assigner, synthetic.group, first), first)
    return {**first, **second}


def _assign_group(assigner: CreditAssigner, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
    internals = _make_internals(group) if assigner.internals else None
    (credit,) = assign_step(assigner, [group], [replayed], internals)
    return credit


def _make_internals(group: EpisodeGroup) -> dict[TurnKey, TurnInternals]:
    """Make synthetic internals from the lengths of turns, so that the ids of agents make no difference."""
    internals = {}
    for episode in group.episodes:
        for key, turn in episode.turns():
            length = len(turn.generation.token_ids)
            before = np.array([len(turn.generation.prompt_ids), 1.0, key.turn], dtype=np.float32)
            tokens = np.full(length, 0.5, dtype=np.float32)
            internals[key] = TurnInternals(before, before + length, -tokens, tokens)
    return internals


def _require(condition: bool, assigner: CreditAssigner, problem: str) -> None:
    if not condition:
        raise ConformanceError(f"credit scheme '{assigner.name}': {problem}")


def _check_deterministic(assigner: CreditAssigner, synthetic: SyntheticGroup) -> None:
    """Equal groups must give equal replays and credit. The order of the replays must not matter."""
    group = synthetic.group
    scheme = copy.deepcopy(assigner)
    other = copy.deepcopy(assigner)
    problem = "the same group gives other {} the second time; draw from streams keyed by the episodes' seeds"
    replays = request_replays(scheme, group)
    _require(replays == request_replays(other, group), assigner, problem.format("replays"))
    first = synthetic.play(replays)
    more_replays = request_more_replays(scheme, group, first)
    _require(more_replays == request_more_replays(other, group, first), assigner, problem.format("second replays"))
    records = {**first, **synthetic.play(more_replays, first)}
    reversed_records = dict(reversed(records.items()))
    credit = _assign_group(scheme, group, records)
    _require(credit == _assign_group(other, group, reversed_records), assigner, problem.format("advantages"))


def _check_groups_independent(assigner: CreditAssigner, first: SyntheticGroup, second: SyntheticGroup) -> None:
    """The credit of a group must not depend on other groups of the step."""
    synthetic_groups = (first, second)
    separate = [_assign(copy.deepcopy(assigner), synthetic) for synthetic in synthetic_groups]
    # A step requests the replays of all its groups first, and assigns credit afterwards.
    shared = copy.deepcopy(assigner)
    first_replays = [request_replays(shared, synthetic.group) for synthetic in synthetic_groups]
    first_records = [
        synthetic.play(replays) for synthetic, replays in zip(synthetic_groups, first_replays, strict=True)
    ]
    more_replays = [
        request_more_replays(shared, synthetic.group, records)
        for synthetic, records in zip(synthetic_groups, first_records, strict=True)
    ]
    all_records = [
        {**records, **synthetic.play(replays, records)}
        for synthetic, records, replays in zip(synthetic_groups, first_records, more_replays, strict=True)
    ]
    together = [
        _assign_group(shared, synthetic.group, records)
        for synthetic, records in zip(synthetic_groups, all_records, strict=True)
    ]
    problem = "advantages of a group depend on the other groups of the batch; keep no state between calls"
    _require(separate == together, assigner, problem)


def _check_records_unchanged(assigner: CreditAssigner, synthetic: SyntheticGroup) -> None:
    group = synthetic.group
    group_before = copy.deepcopy(group)
    records = _play_replays(assigner, synthetic)
    records_before = copy.deepcopy(records)
    _assign_group(assigner, group, records)
    unchanged = group == group_before and records == records_before
    _require(unchanged, assigner, "it changed the records it was given; copy what you change")


def _check_state_dict(assigner: CreditAssigner, trained: CreditAssigner, synthetic: SyntheticGroup) -> None:
    """An untrained scheme that loads the state of a trained one must give the same credit."""
    restored = copy.deepcopy(assigner)
    restored.load_state_dict(_store_and_read_state(trained))
    problem = "given the state_dict of a trained scheme it gives other advantages; put all learned state into it"
    _require(_assign(restored, synthetic) == _assign(trained, synthetic), assigner, problem)


def _store_and_read_state(assigner: CreditAssigner) -> Any:
    """Return the state as a checkpoint gives it back."""
    tensors: dict[str, Tensor] = {}
    try:
        plain = extract_tensors(assigner.state_dict(), "", tensors)
    except TrainingError as error:
        raise ConformanceError(
            f"credit scheme '{assigner.name}': no checkpoint can store its state: {error}"
        ) from error
    return insert_tensors(json.loads(json.dumps(plain)), tensors)


def _check_stored_records(assigner: CreditAssigner, synthetic: SyntheticGroup) -> None:
    """Records that were stored as JSON must give the same credit."""
    group = synthetic.group
    records = _play_replays(assigner, synthetic)
    read_group = EpisodeGroup(group.task, tuple(map(_store_and_read, group.episodes)))
    read_records = {replay: _store_and_read(record) for replay, record in records.items()}
    same = _assign_group(assigner, read_group, read_records) == _assign_group(assigner, group, records)
    problem = "stored and read again, the same records give other advantages; use only the fields of records"
    _require(same, assigner, problem)


def _store_and_read(record: EpisodeRecord) -> EpisodeRecord:
    return from_json(to_json(record))


def _check_replays_ignore_rewards(assigner: CreditAssigner, synthetic: SyntheticGroup) -> None:
    group = synthetic.group
    num_episodes = len(group.episodes)
    first = synthetic.play(request_replays(assigner, group))
    requests = set()
    for scores in (range(num_episodes), range(0, -num_episodes, -1), [0] * num_episodes):
        episodes = [
            replace(episode, reward_terms={"score": float(score)})
            for episode, score in zip(group.episodes, scores, strict=True)
        ]
        rewarded = EpisodeGroup(group.task, tuple(episodes))
        requests.add((request_replays(assigner, rewarded), request_more_replays(assigner, rewarded, first)))
    problem = f"it promises to be {assigner.promise} but chooses its replays by the rewards, which biases the baseline"
    _require(len(requests) == 1, assigner, problem)


def _check_replays_ignore_consequences(assigner: CreditAssigner, synthetic: SyntheticGroup) -> None:
    """A clone's replays must not depend on consequences of its first turn. They may depend on other episodes."""
    problem = (
        f"it promises to be {assigner.promise}, but whether {{}} is replayed, or with what in its place, depends on "
        "what that clone did or caused, which biases the baseline; replay a share of the clones by flip_coin(share, "
        "episode, agent_id), not a number of them"
    )
    for clone, trees in make_trees().items():
        smallest = trees[0]
        for list_interventions in (_list_first_interventions, _list_second_interventions):
            expected = list_interventions(assigner, synthetic, clone, smallest, smallest)
            for tree in trees[1:]:
                actual = list_interventions(assigner, synthetic, clone, tree, smallest)
                for intervention in set().union(*expected, *actual):
                    differences = [
                        np.array([float(intervention in after) - float(intervention in before)])
                        for before, after in zip(expected, actual, strict=True)
                    ]
                    _require(_may_have_mean_zero(differences), assigner, problem.format(clone))


def _list_first_interventions(
    assigner: CreditAssigner, synthetic: SyntheticGroup, clone: AgentId, tree: _Tree, smallest: _Tree
) -> list[set[str]]:
    """List for each seed the first replays' interventions on a clone's first turn, in an episode with this tree."""
    interventions: list[set[str]] = []
    for seed in range(_SEEDS):
        group = _make_group(synthetic, seed, (tree, smallest))
        replays = request_replays(assigner, group)
        interventions.append(_find_interventions(clone, group.episodes[0], replays))
    return interventions


def _list_second_interventions(
    assigner: CreditAssigner, synthetic: SyntheticGroup, clone: AgentId, tree: _Tree, smallest: _Tree
) -> list[set[str]]:
    """List for each seed the second replays' interventions on a clone's first turn.

    The tree is that of a first replay in which the clone's parent was sampled again.
    """
    parent = clone.parent
    if not overrides(assigner, "more_replays") or parent is None or parent == ROOT:
        return []
    interventions: list[set[str]] = []
    for seed in range(_SEEDS):
        group = _make_group(synthetic, seed, (smallest, smallest))
        episode = group.episodes[0]
        first: dict[Replay, EpisodeRecord] = {}
        replays_of_parent: list[EpisodeRecord] = []
        for replay in request_replays(assigner, group):
            if replay.episode_id != episode.episode_id:
                continue
            on_parent = dict(replay.interventions).get(parent)
            is_parent_resampled = on_parent is not None and not on_parent.absent and on_parent.turn == 0
            agents = tree if is_parent_resampled else smallest
            first[replay] = replace(episode, episode_id=str(replay), agents=agents)
            if is_parent_resampled:
                replays_of_parent.append(first[replay])
        replays = request_more_replays(assigner, EpisodeGroup(group.task, (episode,)), first)
        of_seed: set[str] = set()
        for record in replays_of_parent:
            of_seed |= _find_interventions(clone, record, replays)
        interventions.append(of_seed)
    return interventions


def _make_group(synthetic: SyntheticGroup, seed: int, trees: Sequence[_Tree]) -> EpisodeGroup:
    """Make a group of one episode per tree. The episodes' seeds depend on `seed`."""
    episodes = []
    for k, tree in enumerate(trees):
        episode = synthetic.group.episodes[k]
        episodes.append(replace(episode, agents=tree, seed=stream_seed("share", seed, k), parts={}, by_turn={}))
    return EpisodeGroup(synthetic.group.task, tuple(episodes))


def _find_interventions(clone: AgentId, episode: EpisodeRecord, replays: Sequence[Replay]) -> set[str]:
    """Find the interventions on a clone's first turn, in replays of an episode or of a replay."""
    interventions: set[str] = set()
    for replay in replays:
        intervention = dict(replay.interventions).get(clone)
        if replay.episode_id != episode.episode_id or intervention is None:
            continue
        # `again` plays on from a turn that exists or not by consequences of the clone, as the join of `paired` does.
        if intervention.turn == 0 and intervention.kind != "again":
            interventions.add(str(intervention))
    return interventions


def _check_siblings_symmetric(
    assigner: CreditAssigner, synthetic_groups: list[SyntheticGroup], credits: list[_CreditArrays]
) -> None:
    """Two siblings that swap their ids must swap their credit; with random replays, on average."""
    differences: dict[TurnKey, list[np.ndarray]] = {}
    has_random_replays = False
    for synthetic, credit in zip(synthetic_groups, credits, strict=True):
        group = synthetic.group
        mirror = EpisodeGroup(group.task, tuple(map(mirror_record, group.episodes)))
        expected_replays = set(map(mirror_replay, request_replays(assigner, group)))
        mirror_replays = request_replays(assigner, mirror)
        has_random_replays |= expected_replays != set(mirror_replays)
        mirror_records = _play_mirrored(assigner, synthetic, mirror, mirror_replays)
        mirror_credit = _to_arrays(mirror, _assign_group(assigner, mirror, mirror_records))
        for key, array in credit.items():
            differences.setdefault(_without_seed(key), []).append(mirror_credit[mirror_key(key)] - array)
    for key, arrays in differences.items():
        if has_random_replays:
            symmetric = _may_have_mean_zero(arrays)
        else:
            symmetric = bool(np.abs(arrays).max() < 1e-9)
        problem = f"{key}: with two siblings under each other's ids its credit is another; ids must not matter"
        _require(symmetric, assigner, problem)


def _play_mirrored(
    assigner: CreditAssigner, synthetic: SyntheticGroup, mirror: EpisodeGroup, first_replays: Sequence[Replay]
) -> dict[Replay, EpisodeRecord]:
    """Play both rounds of replays of a mirrored group, by mirroring replays of the original group."""
    # For each replay of the mirrored group by id, the id of the replay of the original group.
    original_ids: dict[str, str] = {}
    original_records: dict[Replay, EpisodeRecord] = {}

    def play(replays: Sequence[Replay]) -> dict[Replay, EpisodeRecord]:
        originals = {replay: mirror_replay(replay, original_ids) for replay in replays}
        original_records.update(synthetic.play(list(originals.values()), original_records))
        records = {}
        for replay, original in originals.items():
            original_ids[str(replay)] = str(original)
            records[replay] = replace(mirror_record(original_records[original]), episode_id=str(replay))
        return records

    first = play(first_replays)
    second = play(request_more_replays(assigner, mirror, first))
    return {**first, **second}


def _check_null_players(
    assigner: CreditAssigner, synthetic_groups: list[SyntheticGroup], credits: list[_CreditArrays]
) -> None:
    """Clones that never matter must get 0 on average. A scheme with replays promises it for replayed clones only."""
    arrays: dict[TurnKey, list[np.ndarray]] = {}
    for synthetic, credit in zip(synthetic_groups, credits, strict=True):
        replays = request_replays(assigner, synthetic.group)
        replayed_clones: set[tuple[str, AgentId]] = set()
        for replay in replays:
            replayed_clones.update((replay.episode_id, agent_id) for agent_id, _ in replay.interventions)
        for key, array in credit.items():
            is_promised = not replays or (key.episode_id, key.agent_id) in replayed_clones
            if key.agent_id in NULL_PLAYERS and is_promised:
                arrays.setdefault(_without_seed(key), []).append(array)
    for key, samples in arrays.items():
        mean = float(np.mean([array[1:] for array in samples]))
        problem = f"{key}: it declares null_player, but a clone that never matters gets {mean:+.3f} on average"
        _require(_may_have_mean_zero(samples), assigner, problem)


def _without_seed(key: TurnKey) -> TurnKey:
    """The key without the seed of its synthetic group, so that it is the same in all of them."""
    return replace(key, episode_id=key.episode_id.partition(".")[2])


def _to_arrays(group: EpisodeGroup, credit: Credit) -> _CreditArrays:
    arrays = {}
    for episode in group.episodes:
        for key, turn in episode.turns():
            is_excluded = float(key in credit.excluded)
            arrays[key] = np.array([is_excluded, *credit.weighted(key, len(turn.generation.token_ids))])
    return arrays


def _may_have_mean_zero(samples: list[np.ndarray]) -> bool:
    """Whether every element's mean over independent samples is within the standard errors around 0."""
    values = np.array(samples)
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return bool((np.abs(values.mean(axis=0)) <= _STANDARD_ERRORS * error + 1e-9).all())
