"""Token in, token out: what the learner trains on is what the sampler saw, through clones and several turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import EnginePolicy, PolicyRequest, RolePolicy, SamplingConfig, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny
from selfcest_agents.transformers_engine import TransformersEngine
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.record import EpisodeRecord, Generation
from selfcest_env.rules import Rules
from selfcest_env.terse import TerseProtocol
from selfcest_env.types import Limits, Outcome, Role, Task, TurnKey
from selfcest_env.views import Observation

TOKENIZER = TinyTokenizer()
CODEC = TerseCodec(TOKENIZER)
LIMITS = Limits(total_tokens=400, turn_tokens=24, reply_tokens=3, answer_reserve=8, max_turns=4, max_clones=6)
RULES = Rules(LIMITS, TerseProtocol(), CODEC)
TASK = Task("t", "3:[4]-[9]", "1", "test", context={"A": "123", "B": "45"})


class Caller:
    """A root that calls twice and then answers; a clone that answers, or is cut, or says nonsense."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.role is Role.CLONE:
            return str(rng.choice(["<ans>4<end>", "[3]12<ans>7<end>", "nonsense<end>"]))
        script = ["<call>+@A<sep>+@B</call>", "a12<call>+@B</call>", "a9<ans>1<end>"]
        return script[min(len(observation.exchanges), 2)]


def model_policy(temperature: float = 0.8, max_batch_size: int = 64, seed: int = 0) -> EnginePolicy:
    model = build_tiny(TinyConfig(), seed)
    engine = TransformersEngine(model, stop_ids=TOKENIZER.stop_ids, max_batch_size=max_batch_size)
    return EnginePolicy(engine, CODEC, SamplingConfig(temperature))


def requests(count: int) -> list[RolloutRequest]:
    return [RolloutRequest(f"e{i}", TASK, 100 + i) for i in range(count)]


def model_clones(count: int = 6, temperature: float = 0.8) -> list[EpisodeRecord]:
    """Scripted roots over sampled clones, so that replies of every kind stand in the roots' contexts."""
    policy = RolePolicy({Role.ROOT: ScriptedPolicy(Caller(), CODEC), Role.CLONE: model_policy(temperature)})
    return rollout(requests(count), policy, RULES)


def test_a_scripted_episode_by_hand() -> None:
    (record,) = rollout(requests(1), ScriptedPolicy(Caller(), CODEC), RULES)
    assert [str(agent.agent_id) for agent in record.agents] == ["root", "root.0", "root.1", "root.2"]
    assert [turn.facts.outcome for turn in record.root.turns] == [
        Outcome.DELEGATED,
        Outcome.DELEGATED,
        Outcome.ANSWERED,
    ]
    # <root> # A B 3 : [4] - [9] <asst>: 10 tokens; <call>+@A<sep>+@B</call>: 9 tokens
    assert record.root.turns[0].facts.prompt_tokens == 10
    assert record.root.turns[0].facts.generated_tokens == 9
    assert record.answer == "1"


def test_contexts_are_the_sampled_ids_and_nothing_is_encoded_twice() -> None:
    for record in model_clones():
        for agent in record.agents:
            if agent.role is Role.CLONE:
                assert len(agent.context_ids) == agent.prompt_tokens + agent.generated_tokens


def test_a_codec_that_prices_otherwise_than_it_encodes_is_caught() -> None:
    class Careless(TerseCodec):
        def encode(self, messages, boundary):  # type: ignore[no-untyped-def]
            return (*super().encode(messages, boundary), 0)

        def count(self, messages, boundary):  # type: ignore[no-untyped-def]
            return len(super().encode(messages, boundary))

    careless = Careless(TOKENIZER)
    with pytest.raises(PolicyError, match="the ledger charged"):
        rollout(requests(1), ScriptedPolicy(Caller(), careless), RULES)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_learner_logprobs_equal_behaviour_logprobs(temperature: float) -> None:
    policy = model_policy(temperature)
    model = build_tiny(TinyConfig(), 0)
    roots = RolePolicy({Role.ROOT: policy, Role.CLONE: policy})
    records = rollout(requests(12), roots, RULES)
    multi_turn = 0
    for record in records:
        for agent in record.agents:
            ids = torch.tensor([agent.context_ids])
            with torch.no_grad():
                logprobs = F.log_softmax(model(input_ids=ids).logits[0].double() / temperature, -1)
            position = 0
            multi_turn += len(agent.turns) > 1
            for turn in agent.turns:
                position += len(turn.generation.prompt_ids)
                for token, behaviour in zip(turn.generation.token_ids, turn.generation.behavior_logprobs, strict=True):
                    assert logprobs[position - 1, token].item() == pytest.approx(behaviour, abs=1e-4)
                    position += 1
    assert multi_turn, "the test must see contexts of several turns"


def test_the_history_given_to_the_policy_is_the_stored_one() -> None:
    """Fails if anything between two turns is decoded and encoded again: the tokenizer here maps a text two ways."""
    seen: list[tuple[int, ...]] = []

    class TwoFaced(TerseCodec):
        """Decodes id 60 as '1', whose own id is another: text-to-id round trips are visible."""

        def decode(self, ids: Iterable[int]) -> str:
            return TOKENIZER.decode(TOKENIZER.encode("1", True)[0] if i == 60 else i for i in ids)

    class Recorder:
        def __init__(self) -> None:
            self._done: list[tuple[TurnKey, Generation]] = []

        def submit(self, batch: Sequence[PolicyRequest]) -> None:
            for request in batch:
                block = codec.encode(request.observation.block, request.observation.boundary)
                seen.append(tuple(i for g in request.history for ids in (g.prompt_ids, g.token_ids) for i in ids))
                turn = request.observation.turn
                ids = (60, *TOKENIZER.encode(["<end>", "<end>", "<ans>1<end>"][min(turn, 2)], True))
                text = codec.decode(ids)
                generation = Generation(text, prompt_ids=block, token_ids=ids, behavior_logprobs=(0.0,) * len(ids))
                self._done.append((request.key, generation))

        def poll(self) -> list[tuple[TurnKey, Generation]]:
            done, self._done = self._done, []
            return done

    codec = TwoFaced(TOKENIZER)
    (record,) = rollout(requests(1), Recorder(), Rules(LIMITS, TerseProtocol(), codec))
    assert 60 in seen[1]
    assert seen[2] == record.agents[0].context_ids[: len(seen[2])]


@pytest.mark.parametrize("max_concurrent", [1, 3, 64])
def test_same_seed_same_episode_whatever_is_played_beside_it(max_concurrent: int) -> None:
    def play(policy: ScriptedPolicy, count: int, limit: int) -> list[EpisodeRecord]:
        return rollout(requests(count), policy, RULES, max_concurrent=limit)

    alone = [play(ScriptedPolicy(Caller(), CODEC), 5, 64)[i] for i in range(5)]
    together = play(ScriptedPolicy(Caller(), CODEC), 5, max_concurrent)
    assert alone == together


def test_with_a_model_the_same_rollout_repeats_exactly() -> None:
    first = rollout(requests(8), model_policy(), RULES)
    assert rollout(requests(8), model_policy(), RULES) == first


def test_records_come_in_the_order_of_the_requests() -> None:
    assert [record.episode_id for record in model_clones(5)] == [f"e{i}" for i in range(5)]


def test_a_policy_that_answers_what_it_was_not_asked_is_refused() -> None:
    class Liar(ScriptedPolicy):
        def poll(self) -> list[tuple[TurnKey, Generation]]:
            return [(TurnKey("e9", key.agent_id, 0), generation) for key, generation in super().poll()]

    with pytest.raises(PolicyError, match="e9/root/turn0, which is not in flight"):
        rollout(requests(1), Liar(Caller(), CODEC), RULES)


def test_duplicate_episode_ids_are_refused() -> None:
    with pytest.raises(PolicyError, match="unique"):
        rollout(requests(1) * 2, ScriptedPolicy(Caller(), CODEC), RULES)


def test_sampling_and_roles_are_checked() -> None:
    with pytest.raises(ConfigError, match="temperature is -1"):
        SamplingConfig(-1.0)
    with pytest.raises(ConfigError, match="no policy for role clone"):
        RolePolicy({Role.ROOT: ScriptedPolicy(Caller(), CODEC)})
