"""The engine against plain transformers: same log-probabilities and greedy ids, whatever joins or leaves meanwhile."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from rounding import logprob_rounding
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from selfcest_agents.engine import Completion, Engine, TokenRequest, check_trainable
from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_agents.transformers import engine as engine_module
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_agents.transformers.sampling import draw, uniform_stream
from selfcest_agents.transformers.slot_cache import SlotCache
from selfcest_env.errors import PolicyError
from selfcest_env.types import FinishReason

VOCAB = 195
STOPS = tuple(range(20, 30))  # ten ids of 195: an untrained model stops after about 20 tokens
MAX_POSITIONS = 160


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    model = build_tiny(TinyConfig(hidden_size=32, num_layers=2, max_positions=MAX_POSITIONS), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)  # far from uniform, so that mistakes in position or mask show
    return model


def requests(count: int, temperature: float = 0.8, longest: int = 90) -> list[TokenRequest]:
    rng = random.Random(count)
    return [
        TokenRequest(
            f"r{i}",
            tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))),
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


def run(model: LlamaForCausalLM, work: Sequence[TokenRequest], max_batch_size: int = 16) -> dict[str, Completion]:
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=max_batch_size)
    engine.submit(work)
    return drain(engine)


def teacher_forced(model: LlamaForCausalLM, request: TokenRequest, token_ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of `token_ids` from one uncached forward pass over the whole sequence."""
    ids = torch.tensor([[*request.context_ids, *token_ids]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(request.context_ids) - 1 : -1]
    logprobs = torch.log_softmax(logits.double() / request.temperature, dim=-1)
    return logprobs.gather(1, ids[0, len(request.context_ids) :, None])[:, 0]


def check(model: LlamaForCausalLM, work: Iterable[TokenRequest], found: dict[str, Completion]) -> None:
    work = list(work)
    assert set(found) == {request.key for request in work}
    for request in work:
        got = found[request.key]
        want = teacher_forced(model, request, got.token_ids)
        exact = logprob_rounding(model, request.temperature)
        torch.testing.assert_close(torch.tensor(got.logprobs, dtype=torch.float64), want, atol=exact, rtol=0)
        assert 1 <= len(got.token_ids) <= request.max_new_tokens
        assert not set(got.token_ids[:-1]) & set(STOPS)
        assert (got.token_ids[-1] in STOPS) is (got.finish_reason is FinishReason.STOP)
        if got.finish_reason is FinishReason.LENGTH:
            assert len(got.token_ids) == request.max_new_tokens


@pytest.mark.parametrize("temperature", [0.8, 1.0, 2.0])
def test_logprobs_are_those_of_a_teacher_forced_pass(model: LlamaForCausalLM, temperature: float) -> None:
    work = requests(40, temperature)
    found = run(model, work, max_batch_size=7)  # 40 requests through 7 slots: most of them join mid-way
    check(model, work, found)
    assert {completion.finish_reason for completion in found.values()} == set(FinishReason)


@pytest.mark.slow
def test_requests_submitted_between_polls_join_the_batch(model: LlamaForCausalLM) -> None:
    work = requests(30)
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=8)
    found: dict[str, Completion] = {}
    for request in work:
        engine.submit([request])
        found |= {completion.key: completion for completion in engine.poll()}
    found |= drain(engine)
    check(model, work, found)
    alone = run(model, work, max_batch_size=1)
    assert {key: value.token_ids for key, value in found.items()} == {k: v.token_ids for k, v in alone.items()}


@pytest.mark.slow
def test_order_and_batch_size_do_not_matter(model: LlamaForCausalLM) -> None:
    work = requests(40)
    shuffled = random.Random(1).sample(work, len(work))
    want = run(model, work, max_batch_size=40)
    for other in (run(model, shuffled, max_batch_size=40), run(model, work, 3), run(model, shuffled, 1)):
        for key, completion in want.items():
            assert other[key].token_ids == completion.token_ids
            assert other[key].logprobs == pytest.approx(completion.logprobs, abs=logprob_rounding(model, 0.8))


def test_the_same_calls_repeat_bit_for_bit(model: LlamaForCausalLM) -> None:
    assert run(model, requests(20), 6) == run(model, requests(20), 6)


def test_small_prefill_passes_change_nothing(model: LlamaForCausalLM) -> None:
    work = requests(20)
    engine = TransformersEngine(model, stop_ids=STOPS, prefill_tokens=1)
    engine.submit(work)
    assert {k: v.token_ids for k, v in drain(engine).items()} == {k: v.token_ids for k, v in run(model, work).items()}


@pytest.mark.slow
def test_long_contexts_are_prefilled_in_passes_of_bounded_masks(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids are those of one pass, masks grow with a context's length only, and logits are those of one id."""
    work = requests(20) + [TokenRequest(f"long{i}", (*range(60, 180),), 20, 100 + i, 0.8) for i in range(2)]
    whole = run(model, work)
    monkeypatch.setattr(engine_module, "PREFILL_WIDTH", 7)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def note(_: object, __: object, options: dict[str, torch.Tensor], output: CausalLMOutputWithPast) -> None:
        assert output.logits is not None
        if "attention_mask" not in options:  # the reference pass of `check`
            return
        shapes.append((tuple(options["attention_mask"].shape), tuple(output.logits.shape)))

    handle = model.register_forward_hook(note, with_kwargs=True)
    try:
        for prefix_tokens in (0, 400):  # also behind cached prefixes of different lengths
            engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=16, prefix_tokens=prefix_tokens)
            engine.submit(work)
            found = drain(engine)
            check(model, work, found)
            assert {key: got.token_ids for key, got in found.items()} == {
                key: got.token_ids for key, got in whole.items()
            }
    finally:
        handle.remove()
    assert max(mask[2] for mask, _ in shapes) == 7
    assert max(mask[3] for mask, _ in shapes) >= 119
    assert {logits[1] for _, logits in shapes} == {1}
    # The first pass over the long context reads the keys of seven positions, the second those of fourteen, and so on.
    assert {(1, 1, 7, 7 * number) for number in range(1, 18)} <= {mask for mask, _ in shapes}


def test_greedy_equals_generate(model: LlamaForCausalLM) -> None:
    work = [replace(request, max_new_tokens=20) for request in requests(12, temperature=0.0)]
    found = run(model, work, max_batch_size=5)
    for request in work:
        context = torch.tensor([request.context_ids])
        out = model.generate(
            context,
            attention_mask=torch.ones_like(context),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=list(STOPS),
            pad_token_id=0,
        )
        assert found[request.key].token_ids == tuple(out[0, len(request.context_ids) :].tolist())
        assert set(found[request.key].logprobs) == {0.0}


def test_grouped_heads_and_fused_attention() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=MAX_POSITIONS)
    grouped = LlamaForCausalLM(config).eval()
    assert grouped.config._attn_implementation == "sdpa"
    work = requests(12)
    check(grouped, work, run(grouped, work, 5))
    assert grouped.config._attn_implementation == "sdpa"  # given back to the learner
    grouped.set_attn_implementation("eager")
    check(grouped, work, run(grouped, work, 5))
    grouped.set_attn_implementation("flex_attention")  # which takes no dense mask
    found = run(grouped, work, 5)
    assert grouped.config._attn_implementation == "flex_attention"
    grouped.set_attn_implementation("eager")
    check(grouped, work, found)


def test_the_grant_is_hard_and_the_last_position_usable(model: LlamaForCausalLM) -> None:
    context = tuple(range(30, 40))
    engine = TransformersEngine(model, stop_ids=())
    engine.submit([TokenRequest("one", context, 1, 0), TokenRequest("full", context, MAX_POSITIONS - 10, 0)])
    found = drain(engine)
    assert {key: len(value.token_ids) for key, value in found.items()} == {"one": 1, "full": MAX_POSITIONS - 10}
    assert found["full"].token_ids[:1] == found["one"].token_ids  # one seed, one stream, whatever the grant
    assert {value.finish_reason for value in found.values()} == {FinishReason.LENGTH}


def test_poll_returns_when_the_first_sequence_ends(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=())
    assert engine.poll() == []
    assert engine.pending == 0
    engine.submit([TokenRequest("short", (40,), 3, 0), TokenRequest("long", (40, 41), 9, 1)])
    assert [completion.key for completion in engine.poll()] == ["short"]
    assert engine.pending == 1
    assert [completion.key for completion in engine.poll()] == ["long"]


def test_a_lone_request_joins_a_large_batch_before_it_drains(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=())
    engine.submit([TokenRequest(f"r{i}", (40,), 60, i) for i in range(32)])
    engine.submit([TokenRequest("tick", (40,), 1, 0)])
    assert [completion.key for completion in engine.poll()] == ["tick"]
    engine.submit([TokenRequest("late", (40,), 2, 0)])
    assert [completion.key for completion in engine.poll()] == ["late"]
    assert engine.pending == 32


def test_cancelled_requests_never_complete_and_leave_the_others_alone(model: LlamaForCausalLM) -> None:
    work = requests(12)
    want = run(model, work)
    engine = TransformersEngine(model, stop_ids=STOPS, max_batch_size=6)
    engine.submit(work)
    found = {completion.key: completion for completion in engine.poll()}
    gone = {request.key for request in work if request.key not in found and int(request.key[1:]) % 2}
    engine.cancel([*gone, "unknown"])
    found |= drain(engine)
    assert set(found) == set(want) - gone
    assert all(found[key].token_ids == want[key].token_ids for key in found)


def test_the_version_is_that_of_the_first_token(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=())
    engine.submit([TokenRequest("a", (40,), 1, 0), TokenRequest("b", (40,), 3, 0)])
    engine.poll()
    engine.policy_version = 5
    engine.submit([TokenRequest("c", (40,), 9, 0)])
    assert {key: value.policy_version for key, value in drain(engine).items()} == {"b": 0, "c": 5}


def other(model: LlamaForCausalLM, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A model of the same shape with weights of its own."""
    copy = LlamaForCausalLM(model.config).to(dtype).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return copy


def test_loaded_weights_are_sampled_from_at_once(model: LlamaForCausalLM) -> None:
    """Into a copy, kept contexts included: the second round starts from the same prompts."""
    work = [replace(request, context_ids=tuple(range(30, 70)) + request.context_ids) for request in requests(12)]
    engine = TransformersEngine(other(model), stop_ids=STOPS, prefix_tokens=4096)
    assert check_trainable(engine) is engine
    engine.submit(work)
    old = drain(engine)
    check(other(model), work, old)
    with pytest.raises(AssertionError, match="close"):
        check(model, work, old)
    engine.load_weights(model.named_parameters(), 3)
    engine.submit(work)
    found = drain(engine)
    check(model, work, found)
    assert {completion.policy_version for completion in found.values()} == {3}


def test_weights_are_cast_to_the_dtype_of_the_engine(model: LlamaForCausalLM) -> None:
    target = other(model, torch.bfloat16)
    TransformersEngine(target, stop_ids=STOPS).load_weights(model.named_parameters(), 1)
    for name, parameter in target.named_parameters():
        torch.testing.assert_close(parameter, model.get_parameter(name).bfloat16(), rtol=0, atol=0)


def test_loaded_weights_are_let_go_before_contexts_are_computed_anew(model: LlamaForCausalLM) -> None:
    """A float32 learner's copy of them, as with an adapter, is twice what an engine in bfloat16 holds."""
    engine = TransformersEngine(other(model, torch.bfloat16), stop_ids=())
    engine.submit([TokenRequest("short", (40, 41), 1, 0), TokenRequest("long", (40, 41), 9, 0)])
    assert [completion.key for completion in engine.poll()] == ["short"]
    sent, alive = list[weakref.ref[torch.Tensor]](), list[int]()

    def copies() -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in model.named_parameters():
            copy = parameter.detach().clone()
            sent.append(weakref.ref(copy))
            yield name, copy

    engine._model.register_forward_hook(lambda *_: alive.append(sum(ref() is not None for ref in sent)))
    engine.load_weights(copies(), 1)
    assert len(sent) > 10
    assert alive == [0]


def test_a_shared_model_is_left_as_it_is(model: LlamaForCausalLM) -> None:
    versions = [parameter._version for parameter in model.parameters()]
    engine = TransformersEngine(model, stop_ids=STOPS)
    engine.load_weights(model.state_dict().items(), 1)  # which names the tied output layer too
    assert [parameter._version for parameter in model.parameters()] == versions
    assert engine.policy_version == 1


@pytest.mark.parametrize("prefill_tokens", [1, 8192])
def test_sequences_in_flight_go_on_with_the_loaded_weights(model: LlamaForCausalLM, prefill_tokens: int) -> None:
    work = [TokenRequest(f"r{i}", tuple(range(30 + i, 60 + 2 * i)), 30, i) for i in range(6)]
    first = other(model)
    engine = TransformersEngine(other(model), stop_ids=(), prefill_tokens=prefill_tokens)
    engine.submit([TokenRequest("tick", (40,), 4, 0), *work])
    assert [completion.key for completion in engine.poll()] == ["tick"]
    engine.load_weights(model.named_parameters(), 4)
    found = drain(engine)
    for request in work:
        made = found[request.key]
        assert made.policy_version == 0
        before, after = (teacher_forced(each, request, made.token_ids) for each in (first, model))
        got = torch.tensor(made.logprobs, dtype=torch.float64)
        # Nothing of the old is left in what the later ids look back at.
        torch.testing.assert_close(got[:4], before[:4], atol=logprob_rounding(first), rtol=0)
        torch.testing.assert_close(got[4:], after[4:], atol=logprob_rounding(model), rtol=0)
        assert float((got[4:] - before[4:]).abs().max()) > 0.1


def test_weights_of_another_model_are_refused_and_the_old_ones_stand(model: LlamaForCausalLM) -> None:
    engine = TransformersEngine(model, stop_ids=())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    name, foreign = "model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"
    good = {key: value + 1 for key, value in before.items()}
    for bad in (
        {key: value for key, value in good.items() if key != name},
        good | {foreign: good[name]},
        good | {name: good[name][1:]},
    ):
        with pytest.raises(PolicyError, match=r"1 tensors do not match the model, the first is 'model.layers.[12]"):
            engine.load_weights(bad.items(), 9)
    assert engine.policy_version == 0
    assert all(torch.equal(parameter, before[key]) for key, parameter in model.named_parameters())


def test_training_mode_is_given_back(model: LlamaForCausalLM) -> None:
    model.train()
    try:
        run(model, requests(3))
        assert model.training
    finally:
        model.eval()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_ids": ()}, "'bad' has an empty context"),
        ({"max_new_tokens": 0}, "'bad' has max_new_tokens = 0, expected at least 1"),
        (
            {"max_new_tokens": 158},
            "'bad' has 3 context ids and max_new_tokens = 158, together 161.* holds 160 positions",
        ),
        ({"context_ids": (1, 195)}, "'bad' has context ids from 1 to 195, but the model knows 0 to 194"),
        ({"temperature": -1.0}, "'bad' has temperature -1.0"),
        ({"temperature": float("nan")}, "'bad' has temperature nan"),
        ({"seed": -1}, "'bad' has seed -1"),
        ({"key": "good"}, "'good' is already pending"),
    ],
)
def test_impossible_requests_are_refused_and_nothing_is_queued(
    model: LlamaForCausalLM, change: dict[str, object], message: str
) -> None:
    engine = TransformersEngine(model, stop_ids=STOPS)
    bad = replace(TokenRequest("bad", (1, 2, 3), 5, 0), **change)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=message):
        engine.submit([TokenRequest("good", (1,), 5, 0), bad])
    assert engine.pending == 0


def test_nan_weights_stop_the_run() -> None:
    broken = build_tiny(TinyConfig(hidden_size=8, num_layers=1, num_heads=1), 0)
    with torch.no_grad():
        broken.lm_head.weight[3] = float("nan")
    engine = TransformersEngine(broken, stop_ids=())
    engine.policy_version = 4
    engine.submit([TokenRequest("a", (1,), 5, 0)])
    with pytest.raises(PolicyError, match="NaN logits at policy_version 4"):
        engine.poll()


def test_sliding_windows_are_refused() -> None:
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = MistralConfig(**sizes, num_attention_heads=1, num_key_value_heads=1, sliding_window=4)
    with pytest.raises(PolicyError, match="sliding_window = 4"):
        TransformersEngine(MistralForCausalLM(config), stop_ids=())


def test_layers_with_a_state_are_refused() -> None:
    model = build_tiny(TinyConfig(hidden_size=8, num_layers=1, num_heads=1), 0)
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(PolicyError, match="layers of linear_attention"):
        TransformersEngine(model, stop_ids=())


def test_attention_sees_the_longest_live_context_and_no_more() -> None:
    cache = SlotCache()
    for length in (3, 70):
        cache.prepare(slice(0, 1), torch.tensor([[0]]), torch.tensor([[length - 1]]), length)
        keys, _ = cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
        assert keys.shape == (1, 2, length, 4)
    assert keys[0, 0, :, 0].nonzero().flatten().tolist() == [2, 69]  # growing kept what was written


def test_draw_inverts_the_cumulative_distribution() -> None:
    # softmax(log [.2 .3 .5]) has cumulative [.2 .5 1]; an id is drawn where the uniform is below its upper edge.
    uniforms = torch.tensor([0.0, 0.1999, 0.2001, 0.4999, 0.5001, 1 - 2**-53], dtype=torch.float64)
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(6, 3)
    ids, logprobs = draw(logits, torch.ones(6, dtype=torch.float64), torch.arange(6), uniforms)
    assert ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert logprobs.exp().tolist() == pytest.approx([0.2, 0.2, 0.3, 0.3, 0.5, 0.5])


def test_draw_never_picks_an_impossible_id_and_breaks_ties_low() -> None:
    logits = torch.tensor([[float("-inf"), 1.0, 1.0, float("-inf")]]).expand(3, 4)
    uniforms = torch.tensor([0.0, 1 - 2**-53, 0.9], dtype=torch.float64)
    ids, logprobs = draw(logits, torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), torch.arange(3), uniforms)
    assert ids.tolist() == [1, 2, 1]
    assert logprobs.tolist() == pytest.approx([-0.6931, -0.6931, 0.0], abs=1e-4)


def test_a_temperature_below_all_others_takes_the_likeliest() -> None:
    ids, logprobs = draw(
        torch.tensor([[0.0, 1e-3]]), torch.tensor([1e-60]).double(), torch.arange(1), torch.tensor([0.0]).double()
    )
    assert (ids.tolist(), logprobs.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_show_in_their_own_row_alone(temperature: float) -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 0.0, 0.0]])
    temperatures, uniforms = torch.full((2,), temperature).double(), torch.tensor([0.5, 0.5]).double()
    _, logprobs = draw(logits, temperatures, torch.arange(2), uniforms)
    assert logprobs.isnan().tolist() == [True, False]


def test_draw_divides_by_the_temperature() -> None:
    # Logits [0, 2 ln 3] at temperature 2 are [0, ln 3]: probabilities [1/4, 3/4].
    logits = torch.tensor([[0.0, 2 * 1.0986123]])
    ids, logprobs = draw(logits, torch.tensor([2.0]).double(), torch.arange(1), torch.tensor([0.26]).double())
    assert ids.tolist() == [1]
    assert logprobs.exp().tolist() == pytest.approx([0.75])


def test_a_longer_stream_starts_the_same_way() -> None:
    assert uniform_stream(7, 9)[:4].tolist() == uniform_stream(7, 4).tolist()
    assert uniform_stream(7, 4).tolist() != uniform_stream(8, 4).tolist()
