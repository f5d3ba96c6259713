"""What the trainer asks of a kind of model: its text and tokens at once, its weights when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from selfcest_agents.codec import Codec
from selfcest_env.plugin import PlugIn, Registry
from selfcest_env.rules import Rules
from selfcest_env.types import Limits

if TYPE_CHECKING:  # slow to import, and a language without its weights needs none of it
    from transformers import PreTrainedModel


class Language(Protocol):
    """A model without its weights: how it reads, where it stops, what it can hold.

    Attributes:
        codec: messages to ids and back.
        stop_ids: ids that end a turn; an engine stops there.
        checkpoint: the folder, or the id on the hub, that the initial weights come from; `None` if they are drawn.
    """

    @property
    def codec(self) -> Codec: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def checkpoint(self) -> str | None: ...

    def rules(self, limits: Limits) -> Rules:
        """The rules of an episode. Raises `ConfigError` if its contexts could outgrow the model."""
        ...

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        """A model in evaluation mode: with the initial weights, or with those that `save` wrote to `folder`.

        Args:
            seed: draws the initial weights of a model that has none.
            folder: written by `save`.
            dtype: `float32` or `bfloat16`; by default that of the language.
        """
        ...

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load, an adapter merged into the weights."""
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
    """`tiny`, `chat` or `package.module:Class` with its options. Raises `ConfigError` for what cannot be right."""
    return LANGUAGES.make(name, options, where="model.options")


def language_of(plug_in: PlugIn) -> Language:
    """The language that a config's `model` names."""
    return make_language(plug_in.name, plug_in.options)
