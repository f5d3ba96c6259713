"""Sources of the policy of a study: a trained model, a server, or `package.module:Class`.

A source knows its `fingerprint` and its `rules` before its weights are loaded. So a study finds mistakes before any
work, and loads no weights if all its results are stored.
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
MINIMAL_LIMITS = Limits(total_tokens=1, answer_reserve=0)  # any model can hold the contexts that these allow
_MODEL_FILES = {".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"}


class PolicySource(Protocol):
    """The source of a policy, which the config key `policy` names."""

    @property
    def seeded(self) -> bool:
        """Whether seeds of the study have different weights, and not only different samples."""
        ...

    def rules(self, limits: Limits) -> Rules:
        """Return the rules of an episode. Raises `ConfigError` if its contexts could outgrow the model."""
        ...

    def fingerprint(self, seed: int) -> str:
        """Return a digest of weights, codec and sampling. Stored results are found by it."""
        ...

    def load(self, seed: int) -> Player:
        """Return the player of the policy, without a reward: a study grades its episodes itself.

        Raises:
            ConfigError: the policy cannot be loaded. Servers are checked earlier, by `check_servers`.
        """
        ...


# Models


@dataclass(frozen=True)
class ModelPolicy:
    """A model that is sampled in this process or by vLLM.

    Attributes:
        folder: model folder of a run, for example `runs/quick/delegating/seed0/model`, or the name of a policy that
            comes with the package. `{seed}` is replaced by the study's seed. Empty: the initial weights of `model`.
        model: model, as in a training config; by default that of the run of the folder.
        sampler: sampler, as in a training config; by default that of the run of the folder. With `model` it is
            `transformers`.
    """

    folder: str = ""
    model: PlugIn | None = None
    sampler: PlugIn | None = None

    def __post_init__(self) -> None:
        if not self.folder and self.model is None:
            raise ConfigError(
                "neither folder nor model is given; give folder: the model folder of a run, or model: "
                "{name: ..., options: ...}"
            )
        # Both are cached properties. Reading them here raises for wrong options before any work.
        _ = self._language
        _ = self._sampler

    @property
    def seeded(self) -> bool:
        # Without a checkpoint, the initial weights are drawn from the seed.
        return SEED in self.folder if self.folder else self._language.checkpoint is None

    def rules(self, limits: Limits) -> Rules:
        return self._language.rules(limits)

    def fingerprint(self, seed: int) -> str:
        folder = self._weights(seed)
        weights = _digest_files(folder) if folder is not None else self._language.checkpoint or seed
        return digest(to_stored(self._model), weights, _digest_codec(self._language), to_stored(self._sampler_spec))

    def load(self, seed: int) -> ModelPlayer:
        from transformers.utils.logging import disable_progress_bar  # slow to import, and only this loads weights

        disable_progress_bar()  # type: ignore[no-untyped-call]  # the commands show their own
        folder = self._folder(seed) if self.folder else None
        if folder is None or not (folder / CLONES).is_dir():
            return ModelPlayer(self._language, self._start_sampler(seed, folder))
        samplers = {
            Role.ROOT: self._start_sampler(seed, folder),
            Role.CLONE: self._start_sampler(seed, folder / CLONES),
        }
        return ModelPlayer(self._language, SamplerByRole(samplers))

    def _start_sampler(self, seed: int, folder: Path | None) -> Sampler:
        model = self._language.load(seed, folder)
        sampler = self._sampler.start(self._language, model)
        sampler.sync(model, 0)
        return sampler

    def _folder(self, seed: int) -> Path:
        return find_model_folder(self.folder.replace(SEED, str(seed)))

    def _weights(self, seed: int) -> Path | None:
        """Return the folder that the weights are read from; `None` for weights from the hub or from a seed."""
        if self.folder:
            folder = self._folder(seed)
            if not folder.is_dir():
                raise ConfigError(
                    f"the folder {folder} does not exist; train first (selfcest train), or name the model folder of "
                    "a run"
                )
            return folder
        checkpoint = self._language.checkpoint
        return Path(checkpoint) if checkpoint is not None and Path(checkpoint).is_dir() else None

    @cached_property
    def _run(self) -> RunConfig:
        """The config of the run that the folder belongs to. Raises `ConfigError` if there is none."""
        file = run_file(find_model_folder(self.folder))
        if not file.is_file():
            if SEED not in self.folder and not Path(self.folder).exists():
                raise ConfigError(
                    f"folder is {self.folder}, which does not exist; train first (selfcest train), or name the model "
                    "folder of a run or of Hugging Face; a model of the hub is hub:OWNER/NAME"
                )
            raise ConfigError(
                f"folder is {self.folder}, but there is no {file} with the config of its model; train first, name the "
                "model folder of a run, or give policy.options.model"
            )
        return load_stored_config(file)

    def trained_on(self) -> dict[str, PlugIn]:
        """Return the task families that the folder's variant was trained on; none if no run is known."""
        folder = find_model_folder(self.folder)
        if not self.folder or not run_file(folder).is_file():
            return {}
        variant = self._run.variants.get(variant_of(folder))
        return {} if variant is None else {name: self._run.tasks[name] for name in variant.families}

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
    """Return the config of a model's run: runs/NAME/config.yaml for runs/NAME/VARIANT/seedN/model."""
    return folder.absolute().parent.parent.parent / "config.yaml"


def variant_of(folder: Path) -> str:
    """Return the variant of a model: VARIANT for runs/NAME/VARIANT/seedN/model."""
    return folder.absolute().parent.parent.name


def parse_policy(text: str) -> PlugIn:
    """Return the policy that one text names.

    It is the name of a policy that comes with the package; the model folder of a run, with `{seed}` for the study's
    seed; a chat model as `smollm2`, a folder, a `.gguf` file or `hub:OWNER/NAME`; or `package.module:Class`. No folder
    or file has to exist yet.

    Raises:
        ConfigError: the text resembles the name of a policy that comes with the package, or no path can be so long, or
            a folder has the name of such a policy.
    """
    path = find_model_folder(text)
    chat = PlugIn("model", {"model": {"name": "chat", "options": {"source": text}}})
    if text.startswith(HUB):
        return chat
    try:
        exists = path.exists()
    except OSError as error:
        raise ConfigError(f"policy is {text[:40]!r}..., which cannot be a path: {error.strerror}") from error
    if exists:
        return PlugIn("model", {"folder": text}) if run_file(path).is_file() else chat
    if text == "smollm2":
        return chat
    # `{seed}` cannot be part of a class name, so such a text is a folder.
    if ":" in text and SEED not in text:
        return PlugIn(text)
    hint = did_you_mean(text, list_shipped_policies()) if "/" not in text else ""
    if hint:
        raise ConfigError(f"there is neither a folder nor a policy {text}.{hint}")
    return PlugIn("model", {"folder": text})


def _digest_files(folder: Path) -> str:
    """Return the digest of a model's files by name: weights, config and tokenizer, and those of its clones' model."""
    files_hash = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES):
        with file.open("rb") as stream:
            files_hash.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()};".encode())
    if (folder / CLONES).is_dir():
        files_hash.update(_digest_files(folder / CLONES).encode())
    return files_hash.hexdigest()


def _digest_codec(language: Language) -> str:
    """Return the digest of encoded sample messages, which changes with the chat template and the protocol."""
    rules = language.rules(MINIMAL_LIMITS)
    replies = rules.protocol.replies([Reply("7"), Reply(failure=Fault.OVER_BUDGET)])
    documents = rules.protocol.documents({"B": "07"})
    fault = rules.protocol.fault(Fault.CUT_BY_LENGTH)
    blocks: list[tuple[tuple[Message, ...], Boundary]] = [
        *((opening, Boundary.OPENING) for opening in _make_sample_openings(rules)),
        ((replies,), Boundary.AFTER_STOP),
        ((documents,), Boundary.AFTER_STOP),
        ((fault,), Boundary.AFTER_LENGTH),
    ]
    return digest([language.codec.encode(messages, boundary) for messages, boundary in blocks])


def _make_sample_openings(rules: Rules) -> list[tuple[Message, ...]]:
    """Return the openings of a clone, and of a root that may delegate, read, or do neither."""
    task = "[1] + 2?"
    documents = {"B": "07"}
    root = Brief(Role.ROOT, task, keys=tuple(documents), total_tokens=64)
    # Stored results are found by these texts in this order.
    briefs = [
        rules.clone_brief(1, task, documents, 64),
        replace(root, can_delegate=True),
        replace(root, can_read=True),
        replace(root, documents=documents),
    ]
    return [rules.protocol.open(brief) for brief in briefs]


# Servers


@dataclass(frozen=True)
class ServerPolicy:
    """An OpenAI-compatible server that answers with text; its records have no token ids.

    Attributes:
        server: address and options of the server.
        tokenizer: folder or `hub:OWNER/NAME` of the served chat model. Prompts are counted in its tokens, and its
            special tokens are broken up in tasks, documents and replies. Empty: prompts are counted in words.
        weights: name of the served weights. Change it when the weights change, since a study cannot detect that.
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
        openings = []
        for opening in _make_sample_openings(self.rules(MINIMAL_LIMITS)):
            openings.append([message.content for message in opening])
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
    """Raise `ConfigError` if a server among the policies does not answer.

    A study calls it before its first request. A server that fails later raises `InfrastructureError`.
    """
    for policy in policies:
        if isinstance(policy, ServerPolicy):
            check_reachable(policy.server)


def is_seeded(policy: PlugIn) -> bool:
    """Return `PolicySource.seeded` as far as the config shows it, without weights and without importing a plug-in."""
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
    """Return the policy source `model`, `server` or `package.module:Class` with its options. Raises `ConfigError`."""
    return POLICIES.make(name, options, where=f"{where}.options")
