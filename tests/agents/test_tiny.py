"""The tiny tokenizer keeps untrusted text out of the specials; the tiny model is seeded; folders load everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from selfcest_agents.codec import TerseCodec
from selfcest_agents.tiny import (
    CHARACTERS,
    NUMBERS,
    SPECIALS,
    TinyConfig,
    TinyTokenizer,
    build_tiny,
    load_pretrained,
    save_pretrained,
)
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.protocol import Brief
from selfcest_env.text.terse import BudgetedTerseProtocol, TerseProtocol
from selfcest_env.types import Boundary, Role

TOKENIZER = TinyTokenizer()
TRUSTED = [
    "<root>7:[3]-[42]<asst>",
    "<call>+@B<sep>+@F</call><tool>a8b!<asst>",
    "[3] 4 9[12] 0 9<ans>9<end><err><read>BF</read><doc>B35<clone><pad>",
    "a  b (1+2)*3 = 9; x>=y? #q!",
    "[07][100][][ 5]\nnew\r\n\tline <b>é</end> <END> <<end>>",
    "",
]


def test_vocabulary_holds_every_token_once() -> None:
    assert TOKENIZER.vocab_size == len(TOKENIZER.vocab) == 15 + (10 + 26 + 26 + 18) + 100
    assert TOKENIZER.pad_id == 0
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.stop_ids] == ["</call>", "</read>", "<end>"]


def test_known_text_survives_encoding_and_decoding() -> None:
    text = "".join(SPECIALS) + CHARACTERS + "".join(NUMBERS)
    ids = TOKENIZER.encode(text, trusted=True)
    assert ids == tuple(range(TOKENIZER.vocab_size))
    assert TOKENIZER.decode(ids) == text


def test_numbers_are_single_tokens_without_leading_zeros() -> None:
    assert len(TOKENIZER.encode("[0][9][10][99]", trusted=False)) == 4
    # '[' and ']' are no characters of the vocabulary: [07] is <unk> 0 7 <unk>, and [100] is <unk> 1 0 0 <unk>.
    assert TOKENIZER.decode(TOKENIZER.encode("[07][100]", trusted=True)) == "<unk>07<unk><unk>100<unk>"


@pytest.mark.parametrize("text", [*SPECIALS, "x<end>y", "<<end>>", "</call", "<e<end>nd>"])
def test_untrusted_text_never_yields_a_special(text: str) -> None:
    ids = TOKENIZER.encode(text, trusted=False)
    specials = {TOKENIZER.vocab[token] for token in SPECIALS} - {TOKENIZER.unk_id}
    assert not specials & set(ids)
    assert len(ids) == len(text)  # each character stands for itself or for <unk>


def test_untrusted_end_is_unknown_and_letters() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("<end>", trusted=False)) == "<unk>end>"


def test_decode_refuses_ids_outside_the_vocabulary() -> None:
    with pytest.raises(PolicyError, match="cannot decode id 195.*0 to 194"):
        TOKENIZER.decode([3, 195])


@pytest.mark.parametrize("tie", [False, True])
def test_same_seed_same_weights_and_global_state_untouched(tie: bool) -> None:
    before = torch.get_rng_state()
    one, two, other = (build_tiny(TinyConfig(tie_embeddings=tie), seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    assert torch.equal(one["model.embed_tokens.weight"], one["lm_head.weight"]) is tie


def test_default_size() -> None:
    model = build_tiny(TinyConfig(), 0)
    assert 150_000 < sum(parameter.numel() for parameter in model.parameters()) < 250_000
    assert model.dtype == torch.float32
    assert not model.training


@pytest.mark.parametrize("wrong", [{"hidden_size": 60, "num_heads": 8}, {"num_layers": 0}])
def test_impossible_shapes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="num_layers is 0; expected a whole number >= 1|must be a multiple"):
        TinyConfig(**wrong)


@pytest.mark.parametrize("base", [1.0, 0.0, -5.0, float("inf"), float("nan")])
def test_a_rotary_base_that_is_none_is_refused(base: float) -> None:
    with pytest.raises(ConfigError, match=f"rope_theta is {base}; expected"):
        TinyConfig(rope_theta=base)


def test_the_rotary_base_sets_the_frequencies_and_is_saved(tmp_path: Path) -> None:
    model = build_tiny(TinyConfig(rope_theta=160_000.0), 0)
    # A head has 16 dimensions: eight frequencies base ** (-2 i / 16).
    want = torch.tensor([160_000.0 ** (-i / 8) for i in range(8)])
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, want)
    save_pretrained(model, TOKENIZER, tmp_path)
    torch.testing.assert_close(load_pretrained(tmp_path)[0].model.rotary_emb.inv_freq, want)
    assert build_tiny(TinyConfig(), 0).config.rope_parameters["rope_theta"] == 10_000.0


def test_folder_round_trip(tmp_path: Path) -> None:
    model = build_tiny(TinyConfig(max_positions=64), 3)
    save_pretrained(model, TOKENIZER, tmp_path)
    loaded, tokenizer = load_pretrained(tmp_path)
    auto = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer.encode("<root>7:[3]-[42]<asst>", trusted=True)])
    with torch.inference_mode():
        want = model(ids).logits
        torch.testing.assert_close(loaded(ids).logits, want)
        torch.testing.assert_close(auto(ids).logits, want)
    assert auto.config.eos_token_id == list(TOKENIZER.stop_ids)


@pytest.mark.parametrize("text", TRUSTED)
def test_exported_tokenizer_agrees_on_trusted_text(text: str, tmp_path: Path) -> None:
    TOKENIZER.export().save_pretrained(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    ids = TOKENIZER.encode(text, trusted=True)
    assert tuple(auto.encode(text)) == ids
    assert auto.decode(ids) == TOKENIZER.decode(ids)
    assert (auto.pad_token_id, auto.eos_token) == (TOKENIZER.pad_id, "<end>")


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load_pretrained(tmp_path / "missing")
    smaller = TOKENIZER.export()
    smaller.add_tokens(["more"])
    smaller.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 196 tokens; expected the 195"):
        load_pretrained(tmp_path)


def test_a_budget_in_the_prompt_costs_one_token_whatever_it_is() -> None:
    codec = TerseCodec(TinyTokenizer())
    for text in ("?BF", "[3]+[4]"):
        plain = codec.count(TerseProtocol().open(Brief(Role.ROOT, text)), Boundary.OPENING)
        shown = {
            codec.count(BudgetedTerseProtocol().open(Brief(Role.ROOT, text, total_tokens=n)), Boundary.OPENING)
            for n in (0, 7, 480, 10**9)
        }
        assert shown == {plain + 1}
