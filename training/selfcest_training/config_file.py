"""Reads config files: YAML, `extends`, overrides from the command line, and errors that name the key."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.reward import PRESETS
from selfcest_env.structure import format_value, structure, to_builtins
from selfcest_training.config import RunConfig
from selfcest_training.files import hash_text
from selfcest_training.yaml_text import read_yaml, write_yaml

T = TypeVar("T")


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply overrides of the form `key.path=value`, with YAML values.

    Raises:
        ConfigError: a key or value is wrong. The message names the key, the value and the expected values.
    """
    return load_as(RunConfig, parse_config, path, overrides)


def load_as(kind: type[T], parse: Callable[[dict[str, Any]], T], path: Path, overrides: Sequence[str]) -> T:
    """Read a file with its overrides, and parse the values.

    Args:
        kind: the config dataclass that `parse` returns.
        parse: parses plain values.
        path: path of the YAML file.
        overrides: overrides of its keys.

    Raises:
        ConfigError: a key or value is wrong, or an override misspells the name of a variant, task or strategy and so
            adds an incomplete entry.
    """
    additions: list[_Addition] = []
    data = _read(path, (), additions)
    for override in _put_names_first(overrides):
        before = copy.deepcopy(data)
        apply_override(data, override)
        additions += _find_added_keys(f"override {format_value(override)}", before, data)
    try:
        return parse(data)
    except ConfigError as error:
        # An error inside an entry that was added is often a misspelt name of another entry.
        for addition in additions:
            if str(error).startswith((f"{addition.place}.", f"{addition.place} ")) and addition.is_entry_of(kind):
                raise addition.explain(error) from error
        raise


def read_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the plain values of a YAML file, of the files that it extends, and of overrides. Raises `ConfigError`."""
    data = _read(path, (), [])
    apply_overrides(data, overrides)
    return data


@dataclass(frozen=True)
class _Addition:
    """A key that an override, or a file that extends another one, adds to a mapping.

    Attributes:
        source: the override or file, for the message.
        keys: path of the key. Numbers are positions in lists.
        known: keys that the mapping had before.
    """

    source: str
    keys: tuple[str | int, ...]
    known: tuple[str, ...]

    @property
    def place(self) -> str:
        return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys).removeprefix(".")

    def is_entry_of(self, kind: Any) -> bool:
        """Whether the last key is a name that the user chooses, for example of a variant, and no dataclass field."""
        is_entry = False
        for key in self.keys:
            # Follow the annotation of each key on the path.
            members = [member for member in typing.get_args(kind) if member is not types.NoneType]
            origin = typing.get_origin(kind)
            # `X | None` is followed as `X`.
            if origin in (typing.Union, types.UnionType) and len(members) == 1:
                (kind,) = members
                members = list(typing.get_args(kind))
                origin = typing.get_origin(kind)
            is_entry = isinstance(origin, type) and issubclass(origin, Mapping)
            if is_dataclass(kind):
                kind = typing.get_type_hints(kind).get(str(key), Any)
            elif members:
                kind = members[1] if is_entry else members[0]
            else:
                return False
        return is_entry and is_dataclass(kind)

    def explain(self, error: ConfigError) -> ConfigError:
        """Put before an error in a new entry that its name is new, and the most similar name."""
        suggestion = did_you_mean(str(self.keys[-1]), self.known)
        return ConfigError(
            f"{self.source} names {self.place}, which is not there.{suggestion} Known are {', '.join(self.known)}; "
            f"as a new entry: {error}"
        )


def _find_added_keys(source: str, before: Any, after: Any, keys: tuple[str | int, ...] = ()) -> Iterator[_Addition]:
    """Find the keys that `source` added to mappings, between the values before and after it was applied."""
    if isinstance(before, list) and isinstance(after, list):
        for position, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _find_added_keys(source, old, new, (*keys, position))
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    for key, value in after.items():
        if key in before:
            yield from _find_added_keys(source, before[key], value, (*keys, key))
        elif before:
            yield _Addition(source, (*keys, str(key)), tuple(map(str, before)))


def _read(path: Path, seen: tuple[Path, ...], additions: list[_Addition]) -> dict[str, Any]:
    """Read a YAML mapping and merge it into the file that its key `extends` names, relative to its folder.

    Args:
        path: path of the file.
        seen: files that extend this one, directly or indirectly.
        additions: receives the keys that files add to those that they extend.
    """
    if not path.is_file():
        suggestion = did_you_mean(path.name, (file.name for file in path.parent.glob("*.y*ml")))
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(
            f"there is no config file {path}: it {problem}.{suggestion} Give the path of a YAML file, as in "
            "training/configs/"
        )
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself; remove one 'extends'")
    data = read_yaml(_read_text(path), str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; expected a mapping of config keys")
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str) or not base.isprintable():
        raise ConfigError(f"{path}: extends is {format_value(base)}; expected the path of another config file")
    try:
        extended = _read(path.parent / base, (*seen, path.resolve()), additions)
    except ConfigError as error:
        raise ConfigError(f"{path}: extends is {format_value(base)}: {error}") from error
    merged = _merge(extended, data)
    _keep_removed_terms(merged, data)
    additions += _find_added_keys(str(path), extended, merged)
    return merged


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _merge(base: dict[str, Any], changes: Mapping[str, Any], *, is_flat: bool = False) -> dict[str, Any]:
    """Merge changes into a mapping, recursively.

    `null` deletes a key whose value is a mapping, for example a variant, and becomes the value of any other key.
    Another name of a plug-in deletes the options of the old one, which are not those of the new one.

    Args:
        base: the mapping.
        changes: values by key.
        is_flat: whether the mapping is inside the options of a plug-in. There plug-ins have their own options beside
            their name, and elsewhere under the key `options`.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and value is None:
            del merged[key]
        elif isinstance(old, dict) and isinstance(value, Mapping):
            # Options are no plug-in: one of them may be called `name`.
            if key != "options" and value.get("name", old.get("name")) != old.get("name"):
                old = _without_options(old, is_flat=is_flat)
            merged[key] = _merge(old, value, is_flat=is_flat or key == "options")
        else:
            merged[key] = value
    return merged


def _without_options(plug_in: Mapping[str, Any], *, is_flat: bool) -> dict[str, Any]:
    """Return a plug-in's mapping without its options: where these are beside its name, without everything."""
    return {} if is_flat else {key: value for key, value in plug_in.items() if key != "options"}


def _keep_removed_terms(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Store the `null` of each term that the reward's preset has: without the key the preset's term would return."""
    preset = _get_mapping(data, "reward").get("name", "default")
    terms = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
    for key, change in _get_mapping(_get_mapping(changes, "reward"), "options").items():
        if change is None and key in terms:
            data["reward"]["options"][key] = None


def _get_mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Parse plain values. Raises `ConfigError` for unknown keys and for wrong types."""
    if "strategies" in data and "variants" not in data:
        raise ConfigError(
            "found the config of a study, with strategies; expected the config of a run, with variants: play a study "
            "with `selfcest evaluate -c FILE`"
        )
    return parse_as(RunConfig, data)


def load_stored_config(path: Path) -> RunConfig:
    """Load the config that a run stored in its folder. It may have keys that were renamed since.

    Raises:
        ConfigError: a key or value is wrong, or the file extends another one.
    """
    check_extends_nothing(path)
    return parse_config(with_current_keys(read_config(path)))


def check_extends_nothing(path: Path) -> None:
    """Raise `ConfigError` if a stored config extends another file.

    Stored configs have all of their keys. A folder from another user could otherwise name any file of this machine.
    """
    data = read_yaml(_read_text(path), str(path)) if path.is_file() else {}
    if isinstance(data, dict) and data.get("extends") is not None:
        raise ConfigError(
            f"{path}: extends is {format_value(data['extends'])}; expected a stored config with all of its keys: write "
            "the keys of the other file into this one"
        )


def parse_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """Parse plain values to a config dataclass. Raises `ConfigError` for unknown keys and wrong types."""
    return structure(data, kind)


def dump_config(config: object) -> str:
    """Write a config as YAML, with defaults. Its loader reads it back."""
    return write_yaml(to_builtins(config))


def dump_run(config: RunConfig) -> str:
    """Write the config of a run as YAML without its cluster, which may change when the run resumes."""
    return write_yaml(_run_values(config))


def _run_values(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in to_builtins(config).items() if key != "cluster"}


# Keys of configs that were renamed, with their names in stored files. The part before the dot is the block of the key:
# empty for a key of the top level, and absent where the key was renamed in every block.
# Digests of configs use the stored names, so that stored results and checkpoints still match their configs.
STORED_KEYS: dict[str, str] = {
    ".variants": "arms",
    "phases.min_accuracy": "learned",
    "warmstart.max_attempts": "attempts",
    "rl.loss_denominator_tokens": "constant_tokens",
    "options.loss_denominator_tokens": "constant_tokens",
    "rl.group_filter": "gate",
    "rl.max_staleness": "max_policy_lag",
    "rl.max_retries": "group_tries",
    "rl.max_failed_fraction": "max_dropped_share",
    "evaluation.eval_sets": "cells",
}
# Differences between stored and current values of such keys: `group_tries` counted the first try too.
_STORED_OFFSETS = {"rl.max_retries": 1}


def with_stored_keys(data: Any, parent: str = "") -> Any:
    """Rename the keys of plain values to those of stored files. `parent` is the key that holds the values."""
    if isinstance(data, Mapping):
        stored = {}
        for key, value in data.items():
            place = f"{parent}.{key}"
            name = STORED_KEYS.get(place, STORED_KEYS.get(key, key))
            stored[name] = _add_offset(with_stored_keys(value, key), _STORED_OFFSETS.get(place, 0))
        return stored
    if isinstance(data, list):
        return [with_stored_keys(value, parent) for value in data]
    return data


def with_current_keys(data: Any, parent: str = "") -> Any:
    """Rename the keys of plain values from those of stored files. Current keys stay."""
    if isinstance(data, Mapping):
        current = {}
        for key, value in data.items():
            name = _current_key(parent, key)
            offset = 0 if name == key else _STORED_OFFSETS.get(f"{parent}.{name}", 0)
            current[name] = _add_offset(with_current_keys(value, key), -offset)
        return current
    if isinstance(data, list):
        return [with_current_keys(value, parent) for value in data]
    return data


def _current_key(parent: str, key: Any) -> Any:
    """Get the current name of a key that was renamed; the key itself for all others."""
    for new, old in STORED_KEYS.items():
        block, dot, name = new.rpartition(".")
        if old == key and (not dot or block == parent):
            return name
    return key


def _add_offset(value: Any, offset: int) -> Any:
    return value + offset if offset and type(value) is int else value


def run_digest(config: RunConfig) -> str:
    """Compute the digest of `dump_run`, with stored keys, that checkpoints hold."""
    return hash_text(write_yaml(with_stored_keys(_run_values(config))))


def describe_differences(stored: str, config: RunConfig, where: str) -> list[str]:
    """Describe the differences between a stored config and the config of a run, one phrase per key.

    Args:
        stored: text of the stored `config.yaml`.
        config: config of the run that should resume.
        where: name of the stored file, for errors.

    Returns:
        Keys with different values first, then keys that only one config has; `[]` for equal configs.

    Raises:
        ConfigError: the text is no YAML mapping.
    """
    data = read_yaml(stored, where)
    if not isinstance(data, dict):
        raise ConfigError(f"{where} holds {type(data).__name__}; expected a mapping of config keys")
    # Written and read again, so that numbers have the same types on both sides.
    given = read_yaml(dump_run(config), "the config")
    differences = sorted(_find_differences(data, given, ""), key=lambda difference: difference[0])
    return [phrase for _, phrase in differences]


def _find_differences(stored: Any, given: Any, place: str) -> Iterator[tuple[int, str]]:
    """Yield (rank, phrase): rank 0 for another value of a key, 1 for a key that one side lacks, 2 for another order."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in [*stored, *(key for key in given if key not in stored)]:
            inner = f"{place}.{_format_key(key)}".removeprefix(".")
            if key not in given:
                yield 1, f"{inner} stands only in the stored file, as {format_value(stored[key])}"
            elif key not in stored:
                yield 1, f"{inner} stands only here, as {format_value(given[key])}"
            else:
                yield from _find_differences(stored[key], given[key], inner)
        # The order matters, because variants are trained in it.
        if stored.keys() == given.keys() and list(stored) != list(given):
            yield 2, f"the keys of {place or 'the config'} stand in another order"
    elif isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given) and _has_mapping(given):
        for position, (old, new) in enumerate(zip(stored, given, strict=True)):
            yield from _find_differences(old, new, f"{place}[{position}]")
    # Compared by text, because 1, 1.0 and True are equal values.
    elif repr(stored) != repr(given):
        yield 0, f"{place} is {format_value(stored)} in the stored file and {format_value(given)} here"


def _has_mapping(values: Sequence[Any]) -> bool:
    return any(isinstance(value, dict) for value in values)


def _format_key(key: object) -> str:
    return key if isinstance(key, str) and key.isprintable() else ascii(key)


def find_shipped_config(name: str) -> Path:
    """Find a config that comes with the project: beside the package in a checkout, inside the package in a wheel."""
    package = Path(__file__).parent
    in_checkout = package.parent / "configs" / name
    in_wheel = package / "configs" / name
    return in_wheel if in_wheel.is_file() and not in_checkout.is_file() else in_checkout


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set the keys of overrides, in their order; see `apply_override`."""
    for override in _put_names_first(overrides):
        apply_override(data, override)


def _put_names_first(overrides: Sequence[str]) -> list[str]:
    """Move the name of a plug-in before overrides of its options, since another name deletes the old options."""
    ordered: list[str] = []
    for override in overrides:
        path = override.partition("=")[0]
        *parents, leaf = path.split(".")
        position = len(ordered)
        if leaf == "name" and parents and parents[-1] != "options":
            # Plug-ins inside of options have their own options beside their name.
            deleted = ".".join([*parents, ""] if "options" in parents else [*parents, "options", ""])
            changed = [other.partition("=")[0] for other in ordered]
            # The name must not move before an override that sets the whole plug-in, or a name of it.
            sets_name = (i + 1 for i, other in enumerate(changed) if f"{path}.".startswith(f"{other}."))
            first = max(sets_name, default=0)
            of_old_name = (i for i, other in enumerate(changed) if i >= first and f"{other}.".startswith(deleted))
            position = next(of_old_name, position)
        ordered.insert(position, override)
    return ordered


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set the key of an override `key.path=value`, with a YAML value. Raises `ConfigError` for a wrong override.

    Another name of a plug-in deletes the options of the old one, as in a file that extends another one.
    """
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {format_value(override)} is not of the form key.path=value, as in rl.steps=10")
    value = read_yaml(text, f"override {format_value(override)}: the value")
    *parents, leaf = path.split(".")
    node: Any = data
    for key in parents:
        if isinstance(node, dict):
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        else:
            node = node[_parse_position(override, node, key)]
    if not isinstance(node, dict):
        node[_parse_position(override, node, leaf)] = value
    elif isinstance(node.get(leaf), dict) and value is None:
        # `null` deletes an entry with keys, for example a variant.
        del node[leaf]
        if parents == ["reward", "options"]:
            _keep_removed_terms(data, {"reward": {"options": {leaf: None}}})
    else:
        if leaf == "name" and parents[-1:] != ["options"] and node.get(leaf) != value:
            kept = _without_options(node, is_flat="options" in parents)
            node.clear()
            node.update(kept)
        node[leaf] = value


def _parse_position(override: str, node: Any, key: str) -> int:
    """Parse the position of a list in the path of an override, as in `phases.0.tokens`."""
    if not isinstance(node, list) or not key.isdecimal() or len(key) > 9 or int(key) >= len(node):
        length = f"a list of {len(node)}" if isinstance(node, list) else format_value(node)
        raise ConfigError(f"override {format_value(override)}: {format_value(key)} is no position in {length}")
    return int(key)
