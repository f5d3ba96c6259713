"""Task samplers and gates of the literature: which tasks, how many rollouts; each on a case small enough to know."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from test_outages import LIMITS, PLANS, player

from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup
from selfcest_training.credit import make_assigner
from selfcest_training.stages import checks
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.crediting import counterfactuals
from selfcest_training.stages.produced import Produced, play_groups, without

PLAY: dict[str, Any] = {"step": 0, "seed": 0, "temperature": 1.0, "weights": {}}


# Limits of a group


def test_a_group_is_played_and_replayed_under_the_limits_of_its_plan() -> None:
    tight = replace(LIMITS, total_tokens=90)
    plans = [PLANS[0], replace(PLANS[1], limits=tight), replace(PLANS[2], limits=LIMITS)]
    playing = player()
    groups, _ = play_groups(playing, plans, **PLAY)
    assert [{episode.limits for episode in group.episodes} for group in groups] == [{LIMITS}, {tight}, {LIMITS}]
    assert max(episode.cost.total_tokens for episode in groups[1].episodes) <= 90
    usual, _ = play_groups(playing, PLANS, **PLAY)
    assert [groups[0], groups[2]] == [usual[0], usual[2]], "the others play as they would without"
    assert groups[1] != usual[1]
    found = counterfactuals(make_assigner("coma", {}, where=""), groups, partial(playing.play_replays, temperature=1.0))
    limits = [{played.record.limits for played in of_group.values()} for of_group in found]
    assert limits == [{LIMITS}, {tight}, {LIMITS}]


def test_limits_that_are_none_are_refused_by_the_sampler_s_name() -> None:
    class Odd:
        def propose(self, *_: Any) -> Any:
            return [PlannedGroup(PLANS[0].task, 2, {"total_tokens": 9})]  # type: ignore[arg-type]

    with pytest.raises(TrainingError, match="task sampler Odd, step 3: proposed .*its limits a Limits or None"):
        checks.propose(Odd(), 3, 4, None, None)  # type: ignore[arg-type]


# Groups that a gate has made of episodes


def test_groups_that_a_gate_has_made_wait_in_a_checkpoint_with_their_replays() -> None:
    playing, scheme = player(), make_assigner("coma", {}, where="")
    first, _ = play_groups(playing, PLANS, **PLAY)
    second, _ = play_groups(playing, PLANS[:1], after=PLANS, **PLAY)
    joined = EpisodeGroup(PLANS[0].task, (*first[0].episodes, *second[0].episodes))
    part = EpisodeGroup(PLANS[2].task, first[2].episodes[1:3])
    played = counterfactuals(scheme, (joined, part), partial(playing.play_replays, temperature=1.0))
    groups = (*first, *second)
    produced = Produced(groups, (joined, part), played, planned_episodes=12, rounds=2)
    assert Produced.from_json(json.loads(json.dumps(produced.to_json())), scheme) == produced
    dropped = [*first[1].episodes, first[2].episodes[0], first[2].episodes[3]]
    found = produced.diagnostics()
    assert (found["gate/dropped_groups"], found["gate/rounds"]) == (1, 2)
    assert found["gate/dropped_tokens"] == sum(episode.cost.generated_tokens for episode in dropped)
    rest = without(groups, [*joined.episodes, part.episodes[0]])
    assert [[e.episode_id for e in group.episodes] for group in rest] == [
        [f"s0.g1.e{k}" for k in range(4)],
        ["s0.g2.e0", "s0.g2.e2", "s0.g2.e3"],
    ]
