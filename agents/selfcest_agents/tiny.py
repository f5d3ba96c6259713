"""The embedded default model: a tiny Llama and its tokenizer, which need no download.

The tokenizer has no learned merges. One character is one token, so that a model of 0.2 M parameters sees every digit.
The numbers 0 to 99 in brackets are single tokens too: this model did not learn a stop condition over two tokens.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from selfcest_agents.codec import TerseCodec
from selfcest_agents.weights import check_no_pickle
from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.rules import Rules
from selfcest_env.structure import Above, Checked, Count, Finite, Size
from selfcest_env.text.protocols import make_protocol
from selfcest_env.types import Limits

# torch and transformers take seconds to import, so the functions that build, load or save a model import them.
if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SPECIALS = (
    *("<pad>", "<unk>", "<root>", "<clone>", "<asst>", "<call>", "<sep>", "</call>"),
    *("<read>", "</read>", "<tool>", "<doc>", "<ans>", "<end>", "<err>"),
)
STOPS = ("</call>", "</read>", "<end>")
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase + "+-*/%:;,.?!@#>=() "
MAX_CACHED_TEXTS = 2**14  # texts whose ids a tokenizer keeps
NUMBERS = tuple(f"[{number}]" for number in range(100))
# No leading zeros: [07] is five characters, so that encoding then decoding never changes a text.
_NUMBER = r"\[(?:0|[1-9][0-9]?)\]"
_SPECIAL = "|".join(map(re.escape, SPECIALS))


@dataclass(frozen=True)
class TinyConfig(Checked):
    """Shape of the tiny Llama. The default shape has about 0.17 M parameters.

    Attributes:
        hidden_size: width of the residual stream, a multiple of 2 * `num_heads`.
        num_layers: number of layers.
        num_heads: number of attention heads.
        intermediate_size: width of the gated feed-forward layer.
        max_positions: maximum number of ids of a context, including the generated ones.
        initializer_range: standard deviation of the initial weights. transformers' 0.02 is meant for wider models.
        tie_embeddings: whether the output layer uses the embedding matrix.
        rope_theta: base of the rotary frequencies (Su et al. 2021, section 3.2.2). A larger base rotates more slowly.
        attention_window: number of last tokens that a token sees, with itself; `None` for the whole context.
        attention_sinks: number of first tokens of the context that every token sees beside the window.
    """

    hidden_size: Count = 64
    num_layers: Count = 3
    num_heads: Count = 4
    intermediate_size: Count = 192
    max_positions: Count = 2048
    initializer_range: float = 0.06
    tie_embeddings: bool = True
    rope_theta: Annotated[float, Above(1), Finite()] = 10_000.0
    attention_window: Count | None = None
    attention_sinks: Size = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % (2 * self.num_heads):
            raise ConfigError(
                f"hidden_size is {self.hidden_size} and num_heads is {self.num_heads}; hidden_size must be a multiple "
                f"of 2 * num_heads = {2 * self.num_heads}, because RoPE rotates pairs within a head"
            )
        if self.attention_sinks and self.attention_window is None:
            raise ConfigError(
                f"attention_sinks is {self.attention_sinks} and attention_window is None, so every token sees the "
                "whole context; set attention_window, or set attention_sinks to 0"
            )


class TinyTokenizer:
    """A tokenizer of special tokens, single characters and the numbers [0] to [99]. Any other character is `<unk>`."""

    def __init__(self) -> None:
        self._tokens = (*SPECIALS, *CHARACTERS, *NUMBERS)
        self._ids = {token: index for index, token in enumerate(self._tokens)}
        self._trusted = re.compile(f"{_SPECIAL}|{_NUMBER}|.", re.DOTALL)
        self._untrusted = re.compile(f"{_NUMBER}|.", re.DOTALL)
        # A cache by text and trust. The game counts every text before the policy encodes it, and many texts repeat.
        self._encoded: dict[tuple[str, bool], tuple[int, ...]] = {}

    @property
    def vocab(self) -> dict[str, int]:
        """A copy of the ids by token text."""
        return dict(self._ids)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        return self._ids["<pad>"]

    @property
    def unk_id(self) -> int:
        return self._ids["<unk>"]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: the end of a call, of a read and of an answer."""
        return tuple(self._ids[token] for token in STOPS)

    def encode(self, text: str, trusted: bool) -> tuple[int, ...]:
        """Return the ids of a text. Untrusted text has no special tokens: `<end>` is `<unk>`, `e`, `n`, `d`, `>`."""
        encoded = self._encoded.get((text, trusted))
        if encoded is None:
            pattern = self._trusted if trusted else self._untrusted
            unknown = self.unk_id
            encoded = tuple([self._ids.get(piece, unknown) for piece in pattern.findall(text)])
            if len(self._encoded) >= MAX_CACHED_TEXTS:
                self._encoded.clear()
            self._encoded[text, trusted] = encoded
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, including special tokens. Raises `PolicyError` for an id outside the vocabulary."""
        pieces = []
        for index in ids:
            if not 0 <= index < len(self._tokens):
                raise PolicyError(
                    f"cannot decode id {index}: this tokenizer has ids 0 to {self.vocab_size - 1}; decode with the "
                    "tokenizer of the model that produced it"
                )
            pieces.append(self._tokens[index])
        return "".join(pieces)

    def export(self) -> PreTrainedTokenizerFast:
        """Return the tokenizer for transformers. It encodes all text as trusted, like `encode(text, True)`."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        tokenizer = Tokenizer(models.WordLevel(self.vocab, unk_token="<unk>"))
        pattern = Regex(rf"{_SPECIAL}|{_NUMBER}|[\s\S]")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        named = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer,
            **named,
            extra_special_tokens=[token for token in SPECIALS if token not in named.values()],
            clean_up_tokenization_spaces=False,
        )


def build_tiny(config: TinyConfig, seed: int) -> LlamaForCausalLM:
    """Return a new float32 model in evaluation mode. The global random state does not change."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = TinyTokenizer()
    options: Any = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": config.tie_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "bos_token_id": None,
        "eos_token_id": list(tokenizer.stop_ids),
        "pad_token_id": tokenizer.pad_id,
    }
    make_model: Any = LlamaForCausalLM
    llama = LlamaConfig(**options)
    if config.attention_window is not None:
        from selfcest_agents.window_attention import WindowLlama, WindowLlamaConfig

        make_model = WindowLlama
        options["attention_window"] = config.attention_window
        options["attention_sinks"] = config.attention_sinks
        llama = WindowLlamaConfig(**options)
    with torch.random.fork_rng(devices=[]):
        # Only the CPU generator is seeded. torch.manual_seed would also seed accelerators.
        torch.default_generator.manual_seed(seed)
        model: LlamaForCausalLM = make_model(llama)
        # Layers that write into the residual stream start smaller (Radford et al. 2019, section 2.3), so that the sum
        # does not grow with depth. The model then learns look-ups sooner, and from more initial weights.
        scale = (2 * config.num_layers) ** -0.5
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.mul_(scale)
    if config.attention_window is None:
        # On a CPU eager attention is faster than the fused kernel for this width and these lengths.
        model.set_attn_implementation("eager")
    return _prepare_model(model)


def save_pretrained(model: PreTrainedModel, tokenizer: TinyTokenizer, folder: str | Path) -> None:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load."""
    from selfcest_agents.lora import export_model

    export_model(model, Path(folder))
    tokenizer.export().save_pretrained(folder)


@dataclass(frozen=True)
class TinyLanguage(TinyConfig):
    """A small Llama with a vocabulary of characters and markers. The other attributes are those of `TinyConfig`.

    Attributes:
        protocol: name of the prompt format, or `package.module:Class`. It must use only the characters and markers of
            this vocabulary.
    """

    protocol: str = "terse"

    def __post_init__(self) -> None:
        super().__post_init__()
        make_protocol(self.protocol)

    @cached_property
    def codec(self) -> TerseCodec:
        return TerseCodec(TinyTokenizer())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return TinyTokenizer().stop_ids

    @property
    def checkpoint(self) -> None:
        return None

    def rules(self, limits: Limits) -> Rules:
        max_positions = self.max_positions
        if all(limit is None or limit > max_positions for limit in (limits.total_tokens, limits.context_tokens)):
            raise ConfigError(
                f"limits.total_tokens is {limits.total_tokens} and limits.context_tokens is {limits.context_tokens} "
                f"(None: unlimited), so a context could outgrow model.options.max_positions = {max_positions}; set one "
                f"of the two to at most {max_positions}, or raise max_positions"
            )
        return Rules(limits, make_protocol(self.protocol), self.codec)

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> LlamaForCausalLM:
        import torch

        model = build_tiny(self, seed) if folder is None else load_pretrained(folder)[0]
        # model.to(dtype) would also round the frequencies of RoPE, which are buffers, and so merge near positions.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype or "float32"))
        return model

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        save_pretrained(model, TinyTokenizer(), folder)


def load_pretrained(folder: str | Path) -> tuple[LlamaForCausalLM, TinyTokenizer]:
    """Load a folder that `save_pretrained` wrote. The model is float32 and in evaluation mode.

    Raises:
        ConfigError: there is no such folder, or its tokenizer has another vocabulary than this version.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    from selfcest_agents.window_attention import NAME, WindowLlama, WindowLlamaConfig

    if not Path(folder).is_dir():
        raise ConfigError(f"there is no folder {folder}; expected one that save_pretrained wrote")
    check_no_pickle(Path(folder))
    tokenizer = TinyTokenizer()
    vocab = AutoTokenizer.from_pretrained(folder, local_files_only=True).get_vocab()
    if vocab != tokenizer.vocab:
        raise ConfigError(
            f"the tokenizer in {folder} has {len(vocab)} tokens; expected the {tokenizer.vocab_size} of the tiny "
            "model: load it as a chat model, or train the tiny model again"
        )
    has_window = isinstance(AutoConfig.from_pretrained(folder, local_files_only=True), WindowLlamaConfig)
    model_class = WindowLlama if has_window else LlamaForCausalLM
    model = model_class.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=NAME if has_window else "eager",
        local_files_only=True,
        use_safetensors=True,
    )
    return _prepare_model(model), tokenizer


def _prepare_model(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Convert a model to float32 and switch it to evaluation mode."""
    module: torch.nn.Module = model  # the base class has the typed methods
    module.float().eval()
    return model
