"""A real chat model, end to end: SmolLM2-135M-Instruct from the package that carries it, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoTokenizer

from selfcest_agents.chat import ChatCodec
from selfcest_agents.engine import TokenRequest
from selfcest_agents.pretrained import ChatModel, load_chat_model, smollm2_path
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.types import Boundary, Message, MessageRole, Part

pytestmark = pytest.mark.slow

QUESTIONS = ("What is the capital of France?", "What is 2+2?", "Name three colours.", "Say hello in Spanish, please.")


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ChatModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_chat_model(smollm2_path())
    torch.set_num_threads(threads)


def ask(codec: ChatCodec, question: str) -> tuple[int, ...]:
    system = Message(MessageRole.SYSTEM, (Part("You are a helpful assistant.", True),))
    return codec.encode((system, Message(MessageRole.USER, (Part(question),))), Boundary.OPENING)


def test_the_file_is_converted_once() -> None:
    folder = smollm2_path()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert smollm2_path() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_its_own_template_is_extended_id_for_id(smollm2: ChatModel) -> None:
    codec = smollm2.codec
    assert (codec.frame.has_system_role, codec.frame.reply_role.value) == (True, "user")
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 2+2?"},
    ]
    ids = list(ask(codec, "What is 2+2?"))
    for said, came in (("<tool_call>{}</tool_call>", "clone 1: 4"), ("Answer: 4", "Error")):
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": came}]
        ids += codec.encode_scripted(said)
        ids += codec.encode((Message(MessageRole.TOOL, (Part(came),)),), Boundary.AFTER_STOP)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path())
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == whole


def test_it_answers_greedily_as_generate_does(smollm2: ChatModel) -> None:
    codec = smollm2.codec
    engine = TransformersEngine(smollm2.model, stop_ids=codec.stop_ids)
    contexts = [ask(codec, question) for question in QUESTIONS]
    engine.submit([TokenRequest(question, c, 24, 0, 0.0) for question, c in zip(QUESTIONS, contexts, strict=True)])
    found = {}
    while engine.pending:
        found |= {completion.key: completion.token_ids for completion in engine.poll()}
    assert "Paris" in codec.decode(found[QUESTIONS[0]])
    for question, context in zip(QUESTIONS, contexts, strict=True):
        ids = torch.tensor([context])
        out = smollm2.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert found[question] == tuple(out[0, len(context) :].tolist())


@pytest.mark.parametrize("draft_tokens", [0, 8])
@pytest.mark.parametrize(("dtype", "mean", "largest"), [("float32", 1e-5, 1e-4), ("bfloat16", 0.15, 0.8)])
def test_sampled_log_probs_are_the_learners(
    smollm2: ChatModel, dtype: str, mean: float, largest: float, draft_tokens: int
) -> None:
    model = smollm2.model if dtype == "float32" else load_chat_model(smollm2_path(), dtype=dtype).model
    engine = TransformersEngine(model, stop_ids=smollm2.codec.stop_ids, prefix_tokens=4096, draft_tokens=draft_tokens)
    engine.submit([TokenRequest(q, ask(smollm2.codec, q), 16, i, 0.8) for i, q in enumerate(QUESTIONS)])
    differences = []
    while engine.pending:
        for completion in engine.poll():
            context = ask(smollm2.codec, completion.key)
            ids = torch.tensor([[*context, *completion.token_ids]])
            with torch.inference_mode():
                logits = model(ids).logits[0, len(context) - 1 : -1].double() / 0.8
            want = logits.log_softmax(-1).gather(1, ids[0, len(context) :, None])[:, 0]
            differences += (torch.tensor(completion.logprobs) - want).abs().tolist()
    assert max(differences) < largest
    assert sum(differences) / len(differences) < mean
