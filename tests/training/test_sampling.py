"""Task samplers and gates of the literature: which tasks, how many rollouts; each on a case small enough to know."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from test_outages import LIMITS, PLANS, player

from selfcest_env.errors import TrainingError
from selfcest_training.credit import make_assigner
from selfcest_training.stages import checks
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.crediting import counterfactuals
from selfcest_training.stages.produced import play_groups

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
