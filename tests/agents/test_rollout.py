"""Token in, token out: what the learner trains on is what the sampler saw, through clones and several turns."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rounding import logprob_rounding
from torch.nn import functional as F

from selfcest_agents.codec import TerseCodec
from selfcest_agents.engine import Completion, TokenRequest
from selfcest_agents.policy import EnginePolicy, RolePolicy, SamplingConfig, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, collect_failures, rollout
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.record import EpisodeRecord, Generation
from selfcest_env.rules import Rules
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Action, Fault, FinishReason, Limits, Outcome, Role, Task, TurnKey
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


def test_a_codec_that_prices_otherwise_than_it_encodes_is_caught() -> None:
    class Careless(TerseCodec):
        def encode(self, messages, boundary):  # type: ignore[no-untyped-def]
            return (*super().encode(messages, boundary), 0)

        def count(self, messages, boundary):  # type: ignore[no-untyped-def]
            return len(super().encode(messages, boundary))

    careless = Careless(TOKENIZER)
    with pytest.raises(PolicyError, match="the ledger charged"):
        rollout(requests(1), ScriptedPolicy(Caller(), careless), RULES)


def test_what_is_over_its_grant_is_not_parsed() -> None:
    class Reading(TerseProtocol):
        def parse(self, text: str) -> Action:
            assert len(text) < 100, "a text that cannot count was parsed"
            return super().parse(text)

    class Verbose:
        def act(self, observation: Observation, rng: np.random.Generator) -> str:
            return "<ans>4<end>" if observation.turn else "<ans>" + "7" * 1000

    (record,) = rollout(requests(1), ScriptedPolicy(Verbose(), CODEC), Rules(LIMITS, Reading(), CODEC))
    assert [turn.facts.fault for turn in record.root.turns] == [Fault.OVER_GRANT, None]
    assert record.answer == "4"


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_learner_logprobs_equal_behaviour_logprobs(temperature: float) -> None:
    policy = model_policy(temperature)
    model = build_tiny(TinyConfig(), 0)
    exact = logprob_rounding(model, temperature)
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
                    assert logprobs[position - 1, token].item() == pytest.approx(behaviour, abs=exact)
                    position += 1
    assert multi_turn, "the test must see contexts of several turns"


class TwoFaced(TerseCodec):
    """Decodes id 60 as '1', whose own id is another: a text-to-id round trip shows."""

    def decode(self, ids: Iterable[int]) -> str:
        return TOKENIZER.decode(ids_of("1")[0] if i == 60 else i for i in ids)


def ids_of(text: str) -> tuple[int, ...]:
    """Ids of a text in which '~' stands for id 60."""
    return tuple(60 if i == TOKENIZER.vocab["?"] else i for i in TOKENIZER.encode(text.replace("~", "?"), True))


class FakeEngine:
    """Answers each turn of an agent by its script; a turn that no stop id ends was cut by length."""

    policy_version = 3

    def __init__(self, scripts: dict[str, list[str]]) -> None:
        self.contexts: dict[str, tuple[int, ...]] = {}
        self._scripts, self._waiting = scripts, list[TokenRequest]()

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        self.contexts |= {request.key: request.context_ids for request in requests}
        self._waiting += requests

    def poll(self) -> list[Completion]:
        done = []
        for request in self._waiting:
            _, agent, turn = request.key.split("/")
            ids = ids_of(self._scripts[agent][int(turn.removeprefix("turn"))])
            reason = FinishReason.STOP if ids[-1] in TOKENIZER.stop_ids else FinishReason.LENGTH
            done.append(Completion(request.key, ids, (0.0,) * len(ids), reason, self.policy_version))
        self._waiting = []
        return done

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def cancel(self, keys: Iterable[str]) -> None:
        raise AssertionError("nothing is cancelled here")


def test_each_context_is_the_sampled_ids_and_the_new_block() -> None:
    """Fails if `EnginePolicy` ever encodes a text that was sampled: id 60 would come back as the id of '1'."""
    turns = {  # by agent: what the environment writes, what the engine samples
        "root": [
            ("<root>#AB3:[4]-[9]<asst>", "~<call>~@A<sep>~@B</call>"),
            ("<tool>a1b!<asst>", "a~"),
            ("<end><err><asst>", "~<call>1+~@B</call>"),
            ("<tool>a11<asst>", "~<ans>~<end>"),
        ],
        "root.0": [("<clone>1<doc>A123<asst>", "~<end>"), ("<err><asst>", "~<ans>~<end>")],
        "root.1": [("<clone>1<doc>B45<asst>", "~<end>")] + [("<err><asst>", "~<end>")] * 3,
        "root.2": [("<clone>1+1<doc>B45<asst>", "<ans>~~<end>")],
    }
    codec = TwoFaced(TOKENIZER)
    assert codec.encode_scripted(codec.decode(ids_of("~"))) != ids_of("~")
    engine = FakeEngine({agent: [sampled for _, sampled in pairs] for agent, pairs in turns.items()})
    policy = EnginePolicy(engine, codec, SamplingConfig(1.0))
    (record,) = rollout(requests(1), policy, Rules(LIMITS, TerseProtocol(), codec))
    expected = {}
    for agent, pairs in turns.items():
        context: tuple[int, ...] = ()
        for turn, (block, sampled) in enumerate(pairs):
            expected[f"e0/{agent}/turn{turn}"] = context = (*context, *ids_of(block))
            context = (*context, *ids_of(sampled))
        (stored,) = (found.context_ids for found in record.agents if str(found.agent_id) == agent)
        assert stored == context
    assert engine.contexts == expected
    assert record.answer == "1"


def test_an_engine_that_raises_is_one_line_with_its_cause() -> None:
    """It was a traceback of CUDA's."""

    class Dead(FakeEngine):
        def poll(self) -> list[Completion]:
            raise RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`\n")

    policy = EnginePolicy(Dead({}), CODEC, SamplingConfig())
    with pytest.raises(InfrastructureError, match="Dead failed with RuntimeError: CUDA error: out of memory") as caught:
        rollout(requests(2), policy, RULES)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__.__cause__, RuntimeError)  # type: ignore[union-attr]


class Failing(FakeEngine):
    """Raises at its first poll. A second play must find nothing of the first one."""

    def __init__(self, error: BaseException, scripts: dict[str, list[str]]) -> None:
        super().__init__(scripts)
        self.error: BaseException | None = error

    def poll(self) -> list[Completion]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().poll()

    def cancel(self, keys: Iterable[str]) -> None:
        cancelled = set(keys)
        self._waiting = [request for request in self._waiting if request.key not in cancelled]


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: out of memory"), InfrastructureError("lost")])
def test_episodes_that_an_engine_s_error_has_ended_are_played_again(error: Exception) -> None:
    """The error left the rollout as one that is not retried, and each later play found turns still pending."""
    engine = Failing(error, {"root": ["<ans>1<end>"]})
    policy = EnginePolicy(engine, CODEC, SamplingConfig())
    played, failed = collect_failures(lambda: rollout(requests(2), policy, RULES))
    assert played == []
    assert [episode.episode_id for episode in failed] == ["e0", "e1"]
    assert engine.pending == 0
    assert [record.answer for record in rollout(requests(2), policy, RULES)] == ["1", "1"]


def test_an_engine_s_error_does_not_hold_the_memory_of_the_pass_that_failed() -> None:
    """Its traceback held the tensors of the pass during the next try, which then had less memory than the first."""
    kept: list[weakref.ref[torch.Tensor]] = []

    class Large(Failing):
        def poll(self) -> list[Completion]:
            if not kept:
                activations = torch.zeros(10)
                kept.append(weakref.ref(activations))
            return super().poll()

    engine = Large(RuntimeError("CUDA error: out of memory"), {"root": ["<ans>1<end>"]})
    _, failed = collect_failures(lambda: rollout(requests(1), EnginePolicy(engine, CODEC, SamplingConfig()), RULES))
    assert isinstance(failed[0].cause.__cause__, RuntimeError)
    assert kept[0]() is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PolicyError("wrong")])
def test_an_interrupted_policy_can_play_again(error: BaseException) -> None:
    policy = EnginePolicy(Failing(error, {"root": ["<ans>1<end>"]}), CODEC, SamplingConfig())
    with pytest.raises(type(error)):
        rollout(requests(2), policy, RULES)
    assert [record.answer for record in rollout(requests(1), policy, RULES)] == ["1"]


def test_a_policy_may_be_busy_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million polls without an answer were an error, which a policy that answers after some seconds came to."""

    class Busy(ScriptedPolicy):
        polls = 0

        def poll(self) -> list[tuple[TurnKey, Generation]]:
            self.polls += 1
            return super().poll() if self.polls % 100 == 0 else []

    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        assert 0 < seconds <= 0.05
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr("selfcest_agents.rollout.time", clock)
    busy, ready = (rollout(requests(1), kind(Caller(), CODEC), RULES) for kind in (Busy, ScriptedPolicy))
    assert busy == ready

    class Silent(ScriptedPolicy):
        def poll(self) -> list[tuple[TurnKey, Generation]]:
            return []

    now = 0.0
    with pytest.raises(PolicyError, match="no answer in 3600 s while 2 episodes waited"):
        rollout(requests(2), Silent(Caller(), CODEC), RULES)
    with pytest.raises(ConfigError, match="max_concurrent is 0"):
        rollout(requests(1), ScriptedPolicy(Caller(), CODEC), RULES, max_concurrent=0)


@pytest.mark.parametrize("max_concurrent", [1, 3, 64])
def test_same_seed_same_episode_whatever_is_played_beside_it(max_concurrent: int) -> None:
    def play(policy: ScriptedPolicy, count: int, limit: int) -> list[EpisodeRecord]:
        return rollout(requests(count), policy, RULES, max_concurrent=limit)

    alone = [play(ScriptedPolicy(Caller(), CODEC), 5, 64)[i] for i in range(5)]
    together = play(ScriptedPolicy(Caller(), CODEC), 5, max_concurrent)
    assert alone == together


@pytest.mark.slow
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
    engine = FakeEngine({})
    hot, cold = (EnginePolicy(engine, CODEC, SamplingConfig(temperature)) for temperature in (1.0, 0.0))
    with pytest.raises(ConfigError, match="two roles have policies over one engine"):
        RolePolicy({Role.ROOT: hot, Role.CLONE: cold})
    RolePolicy({Role.ROOT: hot, Role.CLONE: hot})


def test_an_episode_is_not_named_as_a_replay_is() -> None:
    with pytest.raises(ConfigError, match="'e7/root.0=default/sample0', which has the form of a replay's id"):
        RolloutRequest("e7/root.0=default/sample0", TASK, 0)
    assert RolloutRequest("study/lr=0.1", TASK, 0).episode_id == "study/lr=0.1"
