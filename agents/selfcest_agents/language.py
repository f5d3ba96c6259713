"""The interface of model kinds: codec, stop ids and rules without the weights, and loading and saving of weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from selfcest_agents.codec import Codec
from selfcest_env.plugin import PlugIn, Registry
from selfcest_env.rules import Rules
from selfcest_env.types import Limits

if TYPE_CHECKING:  # slow to import, and needed for weights only
    from transformers import PreTrainedModel


class Language(Protocol):
    """A kind of model: its text interface, and functions that load and save its weights.

    Attributes:
        codec: converts messages to ids and ids to text.
        stop_ids: ids at which a turn ends.
        checkpoint: folder of the initial weights, or id on the hub; `None` if they are drawn at random.
    """

    @property
    def codec(self) -> Codec: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def checkpoint(self) -> str | None: ...

    def rules(self, limits: Limits) -> Rules:
        """Return the rules of an episode. Raises `ConfigError` if its contexts could be too long for the model."""
        ...

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        """Return a model in evaluation mode.

        Args:
            seed: seed of initial weights that are drawn at random.
            folder: folder that `save` wrote; `None` for the initial weights.
            dtype: `float32` or `bfloat16`; `None` for the dtype of the language.
        """
        ...

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write a folder for `AutoModelForCausalLM` and `AutoTokenizer`. An adapter is merged into the weights."""
        ...


LANGUAGES = Registry(
    Language,
    "model",
    "selfcest.model",
    {
        "tiny": "selfcest_agents.tiny:TinyLanguage",
        "chat": "selfcest_agents.pretrained:ChatLanguage",
    },
)


def make_language(name: str, options: Mapping[str, object]) -> Language:
    """Make the language `tiny`, `chat` or `package.module:Class`. Raises `ConfigError` for invalid options."""
    return LANGUAGES.make(name, options, where="model.options")


def language_of(plug_in: PlugIn) -> Language:
    """Make the language that the key `model` of a config names."""
    return make_language(plug_in.name, plug_in.options)
