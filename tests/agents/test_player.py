"""Players: limits of a request's own, scores, replays, wrappers, and that all of it can be sent."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from selfcest_agents.codec import Codec
from selfcest_agents.player import ModelPlayer
from selfcest_agents.policy import Policy, RolePolicy, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.samplers import TransformersSampler
from selfcest_agents.scripted import RandomActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.errors import ConfigError
from selfcest_env.replay import Intervention, Replay
from selfcest_env.reward import make_reward
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Limits, Role, Task

TASK = Task("t", "1+2?", "3", "sum")
LIMITS = Limits(total_tokens=200, turn_tokens=12, reply_tokens=4, answer_reserve=4, max_turns=3)
TIGHT = replace(LIMITS, total_tokens=40, max_depth=0)
ASKED = [RolloutRequest("a", TASK, 1), RolloutRequest("b", TASK, 2, TIGHT), RolloutRequest("c", TASK, 3, LIMITS)]


@pytest.fixture(scope="module")
def player() -> ModelPlayer:
    language = TinyLanguage(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_positions=256)
    sampler = TransformersSampler().start(language, language.load(0))
    return ModelPlayer(language, sampler, limits=LIMITS, reward=make_reward("default"))


NOISE = RandomActor(TerseProtocol(), p_answer=0.2, p_delegate=0.6)


def scripted(policy: Policy, codec: Codec | None) -> Policy:
    """Roots by chance, clones by the player's policy."""
    return RolePolicy({Role.ROOT: ScriptedPolicy(NOISE, codec), Role.CLONE: policy})


def test_every_request_is_played_under_its_own_limits_or_the_player_s(player: ModelPlayer) -> None:
    records = player.play(ASKED, 1.0, wrap=scripted)
    assert [record.limits for record in records] == [LIMITS, TIGHT, LIMITS]
    rules = player.language.rules(TIGHT)
    (alone,) = rollout([RolloutRequest("b", TASK, 2)], ScriptedPolicy(NOISE, player.codec), rules)
    assert player.reward is not None
    assert records[1] == player.reward.score(alone), "without clones, so all by chance"
    assert player.play(pickle.loads(pickle.dumps(ASKED)), 1.0, wrap=scripted) == records
    assert player.play([], 1.0) == []


def test_limits_that_the_model_cannot_hold_are_refused_wherever_they_stand(player: ModelPlayer) -> None:
    wide = replace(LIMITS, total_tokens=257)
    with pytest.raises(ConfigError, match="max_positions = 256"):
        player.play([*ASKED, RolloutRequest("d", TASK, 4, wide)], 1.0)


def test_records_are_scored_once_by_the_player_s_reward(player: ModelPlayer) -> None:
    weights = {"malformed": 0.5}
    scored = player.play(ASKED, 1.0, weights)
    assert [record.weights for record in scored] == [weights] * 3
    unscored = replace(player, reward=None).play(ASKED, 1.0, weights)
    assert [record.reward_terms for record in unscored] == [None] * 3
    reward = make_reward("default")
    assert [reward.score(record, weights) for record in unscored] == scored


def test_replays_are_played_under_their_episode_s_limits_and_weights(player: ModelPlayer) -> None:
    """Also by a player whose own limits are others."""
    own = replace(LIMITS, total_tokens=180)
    asked = [RolloutRequest(f"e{i}", TASK, i, own) for i in range(8)]
    factual = player.play(asked, 1.0, {"malformed": 0.5}, wrap=scripted)
    replays = [
        Replay.of(record.episode_id, {agent.agent_id: Intervention.DEFAULT})
        for record in factual
        for agent in record.agents[1:2]
        if agent.turns
    ]
    assert replays
    found = player.play_replays(factual, replays, 1.0)
    assert {played.record.limits for played in found.values()} == {own}
    assert all(played.record.weights == {"malformed": 0.5} for played in found.values())
    assert found == replace(player, limits=TIGHT).play_replays(*pickle.loads(pickle.dumps((factual, replays))), 1.0)
