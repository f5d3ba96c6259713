"""Config files: YAML, `extends`, overrides from the command line, and errors that name the key."""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.structure import format_value, structure, to_builtins
from selfcest_training.config import RunConfig
from selfcest_training.files import digest
from selfcest_training.yaml_text import read_yaml, write_yaml

T = TypeVar("T")


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `key.path=value` overrides, whose values are YAML too.

    Raises:
        ConfigError: names the key, what was found, and what to do.
    """
    return load_as(RunConfig, parse_config, path, overrides)


def load_as(kind: type[T], parse: Callable[[dict[str, Any]], T], path: Path, overrides: Sequence[str]) -> T:
    """Read a file with its overrides, and parse the values.

    Args:
        kind: the config dataclass that `parse` returns.
        parse: makes it of plain values.
        path: of the YAML file.
        overrides: of its keys.

    Raises:
        ConfigError: also for a misspelt name of a variant, a task or a strategy, which would begin an entry of its own.
    """
    additions: list[_Addition] = []
    data = _read(path, (), additions)
    for override in overrides:
        before = copy.deepcopy(data)
        apply_override(data, override)
        additions += _added_keys(f"override {format_value(override)}", before, data)
    try:
        return parse(data)
    except ConfigError as error:
        for addition in additions:
            if str(error).startswith((f"{addition.place}.", f"{addition.place} ")) and addition.is_entry_of(kind):
                raise addition.blame(error) from error
        raise


def read_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a YAML file, with what it extends and the overrides. Raises `ConfigError`."""
    data = _read(path, (), [])
    for override in overrides:
        apply_override(data, override)
    return data


@dataclass(frozen=True)
class _Addition:
    """A key that an override, or a file that extends another one, adds to a mapping.

    Attributes:
        source: the override or the file, in words.
        keys: the path of the key; numbers are positions in lists.
        known: the keys that the mapping had.
    """

    source: str
    keys: tuple[str | int, ...]
    known: tuple[str, ...]

    @property
    def place(self) -> str:
        return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys).removeprefix(".")

    def is_entry_of(self, kind: Any) -> bool:
        """Whether the last key is a name that the user chooses, as that of a variant, and no field of a dataclass."""
        is_entry = False
        for key in self.keys:
            members = [member for member in typing.get_args(kind) if member is not types.NoneType]
            origin = typing.get_origin(kind)
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

    def blame(self, error: ConfigError) -> ConfigError:
        """The error, which says first that the name is new, and which name may have been meant."""
        name = str(self.keys[-1])
        meant = did_you_mean(name, self.known)
        return ConfigError(
            f"{self.source} names {self.place}, which is not there.{meant} Known are {', '.join(self.known)}; as a new "
            f"entry: {error}"
        )


def _added_keys(source: str, before: Any, after: Any, keys: tuple[str | int, ...] = ()) -> Iterator[_Addition]:
    if isinstance(before, list) and isinstance(after, list):
        for position, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from _added_keys(source, old, new, (*keys, position))
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    for key, value in after.items():
        if key in before:
            yield from _added_keys(source, before[key], value, (*keys, key))
        elif before:
            yield _Addition(source, (*keys, str(key)), tuple(map(str, before)))


def _read(path: Path, seen: tuple[Path, ...], additions: list[_Addition]) -> dict[str, Any]:
    """A YAML mapping; `extends: other.yaml` names a file beside it, whose keys it changes or adds to."""
    if not path.is_file():
        meant = did_you_mean(path.name, (file.name for file in path.parent.glob("*.y*ml")))
        why = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(
            f"there is no config file {path}: it {why}.{meant} Give the path of a YAML file, as in training/configs/"
        )
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself; remove one 'extends'")
    data = read_yaml(_text(path), str(path))
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
    merged = _merged(extended, data)
    additions += _added_keys(str(path), extended, merged)
    return merged


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
        if isinstance(old, dict) and value is None:  # a strategy, a variant, a family that is not wanted here
            del merged[key]
    return merged


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Plain values to a `RunConfig`; unknown and renamed keys and wrong types are errors that name the key."""
    _check_renamed(data)
    return parse_as(RunConfig, data)


def load_stored_config(path: Path) -> RunConfig:
    """Return the config that a run has stored in its folder, whose keys may have been renamed since.

    Raises:
        ConfigError: names the key, what was found, and what to do; also for a file that extends another one.
    """
    check_extends_nothing(path)
    return parse_config(with_current_keys(read_config(path)))


def check_extends_nothing(path: Path) -> None:
    """Raise `ConfigError` if a stored config extends another file, which may lie anywhere on this machine.

    Stored configs are written whole. The folder that holds one may be a stranger's.
    """
    data = read_yaml(_text(path), str(path)) if path.is_file() else {}
    if isinstance(data, dict) and data.get("extends") is not None:
        raise ConfigError(
            f"{path}: extends is {format_value(data['extends'])}; expected a stored config with all of its keys: write "
            "the keys of the other file into this one"
        )


def parse_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """Plain values to a config dataclass; unknown keys and wrong types are errors that name the key."""
    return structure(data, kind)


def dump_config(config: object) -> str:
    """The whole config as YAML, defaults written out; its own loader reads it back."""
    return write_yaml(to_builtins(config))


def dump_run(config: RunConfig) -> str:
    """What makes a run the same run, as YAML that `load_config` reads: all but the machines that it runs on."""
    return write_yaml(_run_values(config))


def _run_values(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in to_builtins(config).items() if key != "cluster"}


# Keys of configs that were renamed, each with the name that it had when it was first stored. A key that is renamed in
# one block of a config only has the key of that block in front, and a key of the top level has nothing before its dot.
# Digests of configs are of the stored names, so that stored cells and checkpoints still match their configs when a key
# is renamed.
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
# What is added to the value of such a key: `group_tries` counted the first try too.
_STORED_OFFSETS = {"rl.max_retries": 1}


def with_stored_keys(data: Any, parent: str = "") -> Any:
    """Plain values of a config with every key as digests have it; `parent` is the key that holds them."""
    if isinstance(data, Mapping):
        stored = {}
        for key, value in data.items():
            place = f"{parent}.{key}"
            name = STORED_KEYS.get(place, STORED_KEYS.get(key, key))
            stored[name] = _shifted(with_stored_keys(value, key), _STORED_OFFSETS.get(place, 0))
        return stored
    return [with_stored_keys(value, parent) for value in data] if isinstance(data, list) else data


def with_current_keys(data: Any, parent: str = "") -> Any:
    """The inverse of `with_stored_keys`; keys that are current already stay."""
    if isinstance(data, Mapping):
        current = {}
        for key, value in data.items():
            name = _current_key(parent, key)
            offset = 0 if name == key else _STORED_OFFSETS.get(f"{parent}.{name}", 0)
            current[name] = _shifted(with_current_keys(value, key), -offset)
        return current
    return [with_current_keys(value, parent) for value in data] if isinstance(data, list) else data


def _current_key(parent: str, key: Any) -> Any:
    """The present name of a key that was renamed, else the key."""
    for new, old in STORED_KEYS.items():
        holder, dot, name = new.rpartition(".")
        if old == key and (not dot or holder == parent):
            return name
    return key


def _shifted(value: Any, offset: int) -> Any:
    return value + offset if offset and type(value) is int else value


def _check_renamed(data: Any, place: str = "", parent: str = "") -> None:
    """Raise `ConfigError` for a key that has another name now."""
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        where = f"{place}[{key}]" if isinstance(data, list) else f"{place}.{key}".removeprefix(".")
        name = key if isinstance(data, list) else _current_key(parent, key)
        if name != key:
            current = with_current_keys({key: value}, parent)
            raise ConfigError(f"{where} is now called {name}: write {name}: {format_value(current[name])}")
        _check_renamed(value, where, parent if isinstance(data, list) else str(key))


def run_digest(config: RunConfig) -> str:
    """The digest of `dump_run` that checkpoints hold."""
    return digest(write_yaml(with_stored_keys(_run_values(config))))


def differing_keys(stored: str, config: RunConfig, where: str) -> list[str]:
    """What differs between the text of a stored config and a config, one phrase for each key.

    Args:
        stored: text of a run's `config.yaml`.
        config: of the run that is to be resumed.
        where: name of the stored file, for its errors.

    Returns:
        Keys with another value first, then keys that only one of the two has; `[]` for equal configs.

    Raises:
        ConfigError: the text is no YAML mapping.
    """
    data = read_yaml(stored, where)
    if not isinstance(data, dict):
        raise ConfigError(f"{where} holds {type(data).__name__}; expected a mapping of config keys")
    given = read_yaml(dump_run(config), "the config")  # as it would be read, so that both have the same kinds of number
    differences = sorted(_differences(data, given, ""), key=lambda difference: difference[0])
    return [phrase for _, phrase in differences]


def _differences(stored: Any, given: Any, place: str) -> Iterator[tuple[int, str]]:
    """Phrases with a rank: 0 for another value of a key, 1 for a key that one side lacks, 2 for another order."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in [*stored, *(key for key in given if key not in stored)]:
            inner = f"{place}.{_shown_key(key)}".removeprefix(".")
            if key not in given:
                yield 1, f"{inner} stands only in the stored file, as {format_value(stored[key])}"
            elif key not in stored:
                yield 1, f"{inner} stands only here, as {format_value(given[key])}"
            else:
                yield from _differences(stored[key], given[key], inner)
        if stored.keys() == given.keys() and list(stored) != list(given):  # variants are trained in their order
            yield 2, f"the keys of {place or 'the config'} stand in another order"
    elif isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given) and _has_mapping(given):
        for position, (old, new) in enumerate(zip(stored, given, strict=True)):
            yield from _differences(old, new, f"{place}[{position}]")
    elif repr(stored) != repr(given):  # 1, 1.0 and True are equal, and different texts of a config
        yield 0, f"{place} is {format_value(stored)} in the stored file and {format_value(given)} here"


def _has_mapping(values: Sequence[Any]) -> bool:
    return any(isinstance(value, dict) for value in values)


def _shown_key(key: object) -> str:
    return key if isinstance(key, str) and key.isprintable() else ascii(key)


def shipped_config(name: str) -> Path:
    """A config that comes with the project: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
    places = (package.parent / "configs" / name, package / "configs" / name)
    return next((place for place in places if place.is_file()), places[0])


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set what `key.path=value` names, the value read as YAML. Raises `ConfigError` that quotes it."""
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
            node = node[_index(override, node, key)]
    if isinstance(node, dict) and isinstance(node.get(leaf), dict) and value is None:
        del node[leaf]
    else:
        node[leaf if isinstance(node, dict) else _index(override, node, leaf)] = value


def _index(override: str, node: Any, key: str) -> int:
    """The position that a path's number means in a list, as in `phases.0.tokens`."""
    if not isinstance(node, list) or not key.isdecimal() or len(key) > 9 or int(key) >= len(node):
        length = f"a list of {len(node)}" if isinstance(node, list) else format_value(node)
        raise ConfigError(f"override {format_value(override)}: {format_value(key)} leads nowhere in {length}")
    return int(key)
