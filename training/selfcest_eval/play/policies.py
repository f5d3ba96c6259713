"""Where a study's player comes from: a trained model, a server, or `package.module:Class`.

A source says what it is (`fingerprint`) and what it can hold (`rules`) before its weights are loaded, so that mistakes
show before any work and a study that has been played loads nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from selfcest_agents.language import Language, language_of
from selfcest_agents.openai_client import ServerConfig, check_reachable
from selfcest_agents.player import ModelPlayer, Player, ServerPlayer
from selfcest_agents.pretrained import HUB, ChatLanguage
from selfcest_agents.samplers import Sampler, SamplerByRole, SamplerSpec, make_sampler
from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import PlugIn, Registry
from selfcest_env.protocol import Brief, Reply
from selfcest_env.rules import Rules
from selfcest_env.stored import to_stored
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import Markers, PlainTextProtocol
from selfcest_env.types import Boundary, Fault, Limits, Message, Role
from selfcest_eval.play.digest import digest
from selfcest_training.config import CLONES, RunConfig
from selfcest_training.config_file import load_stored_config
from selfcest_training.shipped import find_model_folder, list_shipped_policies

SEED = "{seed}"
LEAST = Limits(total_tokens=1, answer_reserve=0)  # that any model can hold
_MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"}


class PolicySource(Protocol):
    """What a study's `policy` is built to."""

    @property
    def seeded(self) -> bool:
        """Whether another seed of the study means other weights, and not only other samples."""
        ...

    def rules(self, limits: Limits) -> Rules:
        """The rules of an episode. Raises `ConfigError` if its contexts could outgrow the model."""
        ...

    def fingerprint(self, seed: int) -> str:
        """Changes whenever weights, codec or sampling change: what was played is kept under it."""
        ...

    def load(self, seed: int) -> Player:
        """Who plays, without a reward: a study judges by itself what it plays, or finds played.

        Raises `ConfigError` if nobody can. Of `server` policies `check_servers` asks that before any is loaded.
        """
        ...


# Models


@dataclass(frozen=True)
class ModelPolicy:
    """A model in this process, or in vLLM's.

    Attributes:
        folder: what a run wrote, as `runs/quick/delegating/seed0/model`; `{seed}` in it is the study's seed. Or the
            name of a policy that comes with the package. Empty: the initial weights of `model`.
        model, sampler: as in a training config. By default those of the run that the folder belongs to; without a run
            the sampler is `transformers`.
    """

    folder: str = ""
    model: PlugIn | None = None
    sampler: PlugIn | None = None

    def __post_init__(self) -> None:
        if not self.folder and self.model is None:
            raise ConfigError("a policy needs a folder that a run wrote, or model: {name: ..., options: ...}")
        _ = self._language, self._sampler  # what cannot be built fails here

    @property
    def seeded(self) -> bool:
        # Initial weights may be drawn by the seed.
        return SEED in self.folder if self.folder else self._language.checkpoint is None

    def rules(self, limits: Limits) -> Rules:
        return self._language.rules(limits)

    def fingerprint(self, seed: int) -> str:
        language, folder = self._language, self._weights(seed)
        weights = _files_digest(folder) if folder is not None else language.checkpoint or seed
        return digest(to_stored(self._model), weights, _codec_digest(language), to_stored(self._sampler_spec))

    def load(self, seed: int) -> ModelPlayer:
        from transformers.utils.logging import disable_progress_bar  # slow to import, and only this loads weights

        disable_progress_bar()  # type: ignore[no-untyped-call]  # the commands show their own
        folder = self._folder(seed) if self.folder else None
        if folder is None or not (folder / CLONES).is_dir():
            return ModelPlayer(self._language, self._started(seed, folder))
        folders = {Role.ROOT: folder, Role.CLONE: folder / CLONES}
        by_role = SamplerByRole({role: self._started(seed, own) for role, own in folders.items()})
        return ModelPlayer(self._language, by_role)

    def _started(self, seed: int, folder: Path | None) -> Sampler:
        model = self._language.load(seed, folder)
        sampler = self._sampler.start(self._language, model)
        sampler.sync(model, 0)
        return sampler

    def _folder(self, seed: int) -> Path:
        return find_model_folder(self.folder.replace(SEED, str(seed)))

    def _weights(self, seed: int) -> Path | None:
        """The folder that the weights are read from, `None` for those from the hub or a seed."""
        if self.folder:
            folder = self._folder(seed)
            if not folder.is_dir():
                raise ConfigError(
                    f"the folder {folder} does not exist; train first (selfcest train), or name a model folder that "
                    "a run wrote"
                )
            return folder
        checkpoint = self._language.checkpoint
        return Path(checkpoint) if checkpoint is not None and Path(checkpoint).is_dir() else None

    @cached_property
    def _run(self) -> RunConfig:
        """The config of the run that the folder belongs to."""
        file = run_file(find_model_folder(self.folder))
        if not file.is_file():
            if SEED not in self.folder and not Path(self.folder).exists():
                raise ConfigError(
                    f"folder is {self.folder}, and there is none; train first (selfcest train), or name a model folder "
                    "that a run wrote, or one of Hugging Face; a model of the hub is hub:OWNER/NAME"
                )
            raise ConfigError(
                f"folder is {self.folder}, and there is no {file} that says which model it is; train first, "
                "name a model folder that a run wrote, or give policy.options.model"
            )
        return load_stored_config(file)

    def trained_on(self) -> dict[str, PlugIn]:
        """The task families that the folder's run has trained its variant on; none if no run is known."""
        folder = find_model_folder(self.folder)
        file, variant = run_file(folder), variant_of(folder)
        if not self.folder or not file.is_file():
            return {}
        run = load_stored_config(file)
        return {name: run.tasks[name] for name in run.variants[variant].families} if variant in run.variants else {}

    @property
    def _model(self) -> PlugIn:
        return self._run.model if self.model is None else self.model

    @property
    def _sampler_spec(self) -> PlugIn:
        if self.sampler is None:
            return self._run.sampler if self.model is None else PlugIn("transformers")
        return self.sampler

    @cached_property
    def _language(self) -> Language:
        return language_of(self._model)

    @cached_property
    def _sampler(self) -> SamplerSpec:
        return make_sampler(self._sampler_spec.name, self._sampler_spec.options)


def run_file(folder: Path) -> Path:
    """Where the config of a model's run is: runs/NAME/config.yaml for runs/NAME/VARIANT/seedN/model."""
    return folder.absolute().parent.parent.parent / "config.yaml"


def variant_of(folder: Path) -> str:
    """The variant whose model it is: VARIANT for runs/NAME/VARIANT/seedN/model."""
    return folder.absolute().parent.parent.name


def policy_named(text: str) -> PlugIn:
    """A policy written as one text.

    A policy that comes with the package, by its name; a model folder that a run wrote, `{seed}` in it being the study's
    seed; a chat model as it comes: folder, `.gguf` file, `hub:OWNER/NAME` or `smollm2`; or `package.module:Class`.
    Nothing need be there yet. Raises `ConfigError` if a model of one's own has the name of one that comes with the
    package.
    """
    place = find_model_folder(text)
    chat = PlugIn("model", {"model": {"name": "chat", "options": {"source": text}}})
    if text.startswith(HUB):
        return chat
    try:
        there = place.exists()
    except OSError as error:
        raise ConfigError(f"policy is {text[:40]!r}..., which no path can be: {error.strerror}") from error
    if there:
        return PlugIn("model", {"folder": text}) if run_file(place).is_file() else chat
    if text == "smollm2":
        return chat
    if ":" in text and SEED not in text:
        return PlugIn(text)
    if "/" not in text and (meant := did_you_mean(text, list_shipped_policies())):
        raise ConfigError(f"there is neither a folder nor a policy {text}.{meant}")
    return PlugIn("model", {"folder": text})


def _files_digest(folder: Path) -> str:
    """Digest of a model's files by name: weights, config and tokenizer; of the clones' model too, if there is one."""
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES):
        with file.open("rb") as stream:
            found.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()};".encode())
    if (folder / CLONES).is_dir():
        found.update(_files_digest(folder / CLONES).encode())
    return found.hexdigest()


def _codec_digest(language: Language) -> str:
    """Digest of what the codec makes of every kind of block, so that another template or protocol is noticed."""
    rules = language.rules(LEAST)
    blocks: list[tuple[Iterable[Message], Boundary]] = [
        *((opening, Boundary.OPENING) for opening in _openings(rules)),
        ([rules.protocol.replies([Reply("7"), Reply(failure=Fault.OVER_BUDGET)])], Boundary.AFTER_STOP),
        ([rules.protocol.documents({"B": "07"})], Boundary.AFTER_STOP),
        ([rules.protocol.fault(Fault.CUT_BY_LENGTH)], Boundary.AFTER_LENGTH),
    ]
    return digest([language.codec.encode(tuple(messages), boundary) for messages, boundary in blocks])


def _openings(rules: Rules) -> list[tuple[Message, ...]]:
    """What a clone is told, and a root that may delegate, read, or neither."""
    task, texts = "[1] + 2?", {"B": "07"}
    root = Brief(Role.ROOT, task, keys=tuple(texts), total_tokens=64)
    roots = (replace(root, can_delegate=True), replace(root, can_read=True), replace(root, documents=texts))
    return [rules.protocol.open(brief) for brief in (rules.clone_brief(1, task, texts, 64), *roots)]


# Servers


@dataclass(frozen=True)
class ServerPolicy:
    """An OpenAI-compatible server that answers with text; its records have no token ids.

    Attributes:
        server: where it is; see `ServerConfig`.
        tokenizer: folder or `hub:OWNER/NAME` of the chat model that it serves: prompts are priced by its tokens, and
            its special tokens too are broken where they stand in tasks, documents and replies. Empty: words.
        weights: a name for what it serves now. Nothing here can see weights change behind one name, so change it then.
    """

    server: ServerConfig
    tokenizer: str = ""
    weights: str = ""

    seeded: bool = field(default=False, init=False)

    def rules(self, limits: Limits) -> Rules:
        language = self._language
        rules = Rules(limits, HermesProtocol(), WordCounter()) if language is None else language.rules(limits)
        return Rules(limits, PlainTextProtocol(rules.protocol, self._markers), rules.counter)

    def fingerprint(self, seed: int) -> str:
        server = {"base_url": self.server.base_url, "model": self.server.model, "extra": dict(self.server.extra)}
        openings = [[message.content for message in opening] for opening in _openings(self.rules(LEAST))]
        return digest(server, self.tokenizer, self.weights, openings, self._markers.fingerprint)

    def load(self, seed: int) -> ServerPlayer:
        return ServerPlayer(self.server, self.rules, self._markers)

    @cached_property
    def _markers(self) -> Markers:
        return Markers() if self._language is None else Markers(self._language.codec.markers)

    @cached_property
    def _language(self) -> ChatLanguage | None:
        return ChatLanguage(self.tokenizer) if self.tokenizer else None


def check_servers(policies: Iterable[PolicySource]) -> None:
    """Before the first request: `check_reachable` for each server among them. One that dies later is no mistake."""
    for policy in policies:
        if isinstance(policy, ServerPolicy):
            check_reachable(policy.server)


def is_seeded(policy: PlugIn) -> bool:
    """`PolicySource.seeded` as far as a config tells it: no weights need be there, and no code of others is run."""
    if policy.name == "model" and not policy.options.get("folder"):
        return make_policy(policy.name, policy.options, "policy").seeded
    return SEED in str(policy.options)


POLICIES = Registry(
    PolicySource,
    "policy",
    "selfcest.policy",
    {"model": "selfcest_eval.play.policies:ModelPolicy", "server": "selfcest_eval.play.policies:ServerPolicy"},
)


def make_policy(name: str, options: Mapping[str, object], where: str) -> PolicySource:
    """`model`, `server` or `package.module:Class` with its options. Raises `ConfigError`."""
    return POLICIES.make(name, options, where=f"{where}.options")
