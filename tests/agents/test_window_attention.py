"""Attention windows with sinks: the definition of StreamingLLM, decoding with a cache, and who refuses such a model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from selfcest_agents.engine import TokenRequest
from selfcest_agents.samplers import VllmSampler
from selfcest_agents.tiny import (
    TinyConfig,
    TinyLanguage,
    TinyTokenizer,
    build_tiny,
    load_pretrained,
    save_pretrained,
)
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.window_attention import WindowLlama
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.types import ROOT
from selfcest_training.learner.batch import Sample
from selfcest_training.learner.options import OptimizerConfig, Rows
from selfcest_training.learner.update import ForwardOutput, Learner

VOCAB = 195
WINDOW = 12
SINKS = 5
SHAPE = {"hidden_size": 32, "max_positions": 400}


def build(num_layers: int, *, window: int | None = WINDOW, sinks: int = SINKS) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    sinks = 0 if window is None else sinks
    model = build_tiny(TinyConfig(**SHAPE, num_layers=num_layers, attention_window=window, attention_sinks=sinks), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)  # far from uniform, so that mistakes in position or mask show
    return model


def random_ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


@torch.inference_mode()
def logits(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("sinks", [0, 1, SINKS])
def test_one_layer_sees_the_sinks_and_the_window_as_one_text(sinks: int) -> None:
    # Keys of the first layer depend on their own ids alone. So every logit is that of full attention over a text that
    # has only the sinks and the window, numbered from 0 (arXiv 2309.17453, section 3.2).
    windowed = build(1, sinks=sinks)
    full = build(1, window=None)
    ids = random_ids(330)  # more than two blocks of queries
    found = logits(windowed, ids)
    for position in [*range(0, 60, 4), *range(60, 330, 45), 329]:
        seen = ids[: position + 1]
        if len(seen) > sinks + WINDOW:
            seen = [*ids[:sinks], *seen[-WINDOW:]]
        torch.testing.assert_close(found[position], logits(full, seen)[-1], atol=2e-5, rtol=1e-5)


def test_a_window_as_long_as_the_text_is_full_attention_to_the_bit() -> None:
    ids = random_ids(90)
    assert torch.equal(logits(build(3, window=90), ids), logits(build(3, window=None), ids))
    assert not torch.allclose(logits(build(3, window=80), ids), logits(build(3, window=None), ids))


@pytest.mark.slow
def test_decoding_with_a_cache_equals_the_full_forward_pass() -> None:
    model = build(3)
    rng = random.Random(1)
    requests = [
        TokenRequest(f"r{i}", tuple(random_ids(rng.randint(1, 280), i)), rng.randint(1, 80), i, 0.8) for i in range(24)
    ]
    engine = TransformersEngine(model, stop_ids=range(20, 24), max_batch_size=7, prefix_tokens=200)
    engine.submit(requests)
    completions = []
    while engine.pending:
        completions += engine.poll()
    assert len(completions) == len(requests)
    assert any(len(completion.token_ids) > SINKS + WINDOW for completion in completions)
    by_key = {request.key: request for request in requests}
    for completion in completions:
        request = by_key[completion.key]
        ids = [*request.context_ids, *completion.token_ids]
        logprobs = torch.log_softmax(logits(model, ids).double() / 0.8, dim=-1)[len(request.context_ids) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        found = torch.tensor(completion.logprobs, dtype=torch.float64)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


def test_generate_of_transformers_decodes_the_same_and_refuses_padding() -> None:
    model = build(2)
    ids = torch.tensor([random_ids(30)])
    found = model.generate(ids, do_sample=False, max_new_tokens=25, eos_token_id=-1)[0].tolist()
    for position in range(30, 55):
        assert found[position] == int(logits(model, found[:position])[-1].argmax())
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with pytest.raises(PolicyError, match="the attention_mask hides tokens"):
        model(ids, attention_mask=mask)


def test_the_learner_computes_what_the_model_decodes() -> None:
    model = build(2)
    samples = []
    for seed, length in enumerate((50, 9, 33)):
        zeros = np.zeros(length, dtype=np.float32)
        ids = np.array(random_ids(length, seed))
        samples.append(Sample("e", ROOT, ids, np.arange(length) > 3, zeros, zeros, zeros + 1, 1.0))
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=200)
    arrays, _ = learner.compute(samples, ForwardOutput.LOGPROBS)
    for sample, array in zip(samples, arrays, strict=True):
        ids = sample.token_ids.tolist()
        logprobs = torch.log_softmax(logits(model, ids), dim=-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        expected = torch.where(torch.as_tensor(sample.loss_mask[1:]), logprobs, 0.0)
        torch.testing.assert_close(torch.as_tensor(array[1:]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rows", [Rows.TREE, Rows.PACKED])
def test_rows_of_several_contexts_are_refused(rows: Rows) -> None:
    with pytest.raises(ConfigError, match=f"rows is '{rows}' and model.options.attention_window is 12.*'bucketed'"):
        Learner(build(1), OptimizerConfig(), pad_id=0, micro_batch_tokens=100, rows=rows)


def test_a_folder_keeps_the_window_and_other_programs_refuse_it(tmp_path: Path) -> None:
    model = build(2)
    save_pretrained(model, TinyTokenizer(), tmp_path)
    loaded, _ = load_pretrained(tmp_path)
    ids = random_ids(50)
    assert isinstance(loaded, WindowLlama)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert '"model_type": "selfcest_window_llama"' in (tmp_path / "config.json").read_text(encoding="utf-8")


def test_the_attention_cannot_be_replaced() -> None:
    with pytest.raises(PolicyError, match="is 'sdpa', and this model has an attention window of 12"):
        build(1).set_attn_implementation("sdpa")


def test_sinks_need_a_window() -> None:
    with pytest.raises(ConfigError, match="attention_sinks is 4 and attention_window is None"):
        TinyConfig(attention_sinks=4)


def test_vllm_refuses_a_window_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    language = TinyLanguage(attention_window=12)
    with pytest.raises(ConfigError, match="model.options.attention_window is 12, which vLLM.*sampler.name to transf"):
        VllmSampler().start(language, None)
