"""Config files: YAML, `extends`, overrides from the command line, and errors that name the key."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cattrs
import yaml

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_training.config import RunConfig
from selfcest_training.learner.batch import Denominator
from selfcest_training.learner.forward import Precision
from selfcest_training.learner.losses import ImportanceLevel
from selfcest_training.learner.tree_rows import Rows

T = TypeVar("T")


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `key.path=value` overrides, whose values are YAML too.

    Raises:
        ConfigError: names the key, what was found, and what to do.
    """
    return parse_config(read_config(path, overrides))


def read_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a YAML file, with what it extends and the overrides. Raises `ConfigError`."""
    data = _read(path, seen=())
    for override in overrides:
        apply_override(data, override)
    return data


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A YAML mapping; `extends: other.yaml` names a file beside it, whose keys it changes or adds to."""
    if not path.is_file():
        raise ConfigError(f"there is no config file {path}; give the path of a YAML file, as in training/configs/")
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself; remove one 'extends'")
    try:
        data = _unshared(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: an alias (*name) stands inside what it names; write the value out") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; expected a mapping of config keys")
    base = data.pop("extends", None)
    if base is None:
        return data
    return _merged(_read(path.parent / str(base), (*seen, path.resolve())), data)


def _unshared(node: Any) -> Any:
    """A copy without YAML's aliases: one dict at two places would let an override of one arm change them all."""
    if isinstance(node, dict):
        return {key: _unshared(value) for key, value in node.items()}
    return [_unshared(value) for value in node] if isinstance(node, list) else node


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
        if isinstance(old, dict) and value is None:  # a strategy, an arm, a family that is not wanted here
            del merged[key]
    return merged


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Plain values to a `RunConfig`; unknown keys and wrong types are errors that name the key."""
    return parse_as(RunConfig, data)


def parse_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """Plain values to a config dataclass; unknown keys and wrong types are errors that name the key."""
    _check_keys(kind, data, "")
    try:
        return _converter.structure(data, kind)
    except cattrs.BaseValidationError as error:
        raise ConfigError("config: " + "; ".join(_reasons(error))) from error


def dump_config(config: object) -> str:
    """The whole config as YAML, defaults written out; its own loader reads it back."""
    return yaml.safe_dump(_converter.unstructure(config), sort_keys=False)


def check_writable(folder: Path) -> None:
    """Raise `ConfigError` now if the run folder cannot be written, rather than after the first checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"the run folder {folder} cannot be written ({error.strerror or error}); set output= to a folder you own"
        ) from error


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set what `key.path=value` names, the value read as YAML. Raises `ConfigError` that quotes it."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {override!r} is not of the form key.path=value, as in rl.steps=10")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from error
    *parents, leaf = path.split(".")
    node: Any = data
    for key in parents:
        if isinstance(node, dict):
            node = node.setdefault(key, {})
        else:
            node = node[_index(override, node, key)]
    if isinstance(node, dict) and isinstance(node.get(leaf), dict) and value is None:
        del node[leaf]
    else:
        node[leaf if isinstance(node, dict) else _index(override, node, leaf)] = value


def _index(override: str, node: Any, key: str) -> int:
    """The position that a path's number means in a list, as in `phases.0.tokens`."""
    if not isinstance(node, list) or not key.isdecimal() or int(key) >= len(node):
        length = f"a list of {len(node)}" if isinstance(node, list) else f"{node!r}"
        raise ConfigError(f"override {override!r}: '{key}' leads nowhere in {length}")
    return int(key)


def _check_keys(kind: Any, data: Any, place: str) -> None:
    """Walk config and data side by side, so that an unknown key is reported with its whole path."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{place or 'config'} is {data!r}; expected a mapping")
        hints = typing.get_type_hints(kind)
        for key, value in data.items():
            if key not in hints:
                known = ", ".join(hints)
                raise ConfigError(f"unknown config key '{place}{key}' (known here: {known}).{did_you_mean(key, hints)}")
            _check_keys(hints[key], value, f"{place}{key}.")
    elif origin is tuple and isinstance(data, Sequence) and not isinstance(data, str):
        for i, value in enumerate(data):
            _check_keys(typing.get_args(kind)[0], value, f"{place[:-1]}[{i}].")
    elif origin is not None and isinstance(data, Mapping) and typing.get_args(kind)[1:]:
        for key, value in data.items():
            _check_keys(typing.get_args(kind)[1], value, f"{place}{key}.")


def _reasons(error: BaseException) -> list[str]:
    return [
        reason.replace("$.", "").removesuffix(" @ $")
        for reason in cattrs.transform_error(error, format_exception=_reason)
    ]


def _reason(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return f"required key {error} is missing"
    return str(error)


def _structure_number(value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)  # YAML 1.1 reads 3e-4, without a point, as text
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is no {kind.__name__}")
    if kind is int and not isinstance(value, int):
        raise ConfigError(f"{value!r} is no whole number")
    return kind(value)


def _structure_bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{value!r} is neither true nor false")
    return value


def _structure_optional_int(value: Any, _: Any) -> int | None:
    return None if value is None else int(_structure_number(value, int))


def _structure_str(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is no text")
    return value


def _structure_enum(value: Any, kind: Any) -> Any:
    if value not in list(kind):
        raise ConfigError(f"{value!r} is none of {', '.join(kind)}")
    return kind(value)


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook(int, _structure_number)
_converter.register_structure_hook(float, _structure_number)
_converter.register_structure_hook(bool, _structure_bool)
_converter.register_structure_hook(str, _structure_str)
_converter.register_structure_hook(int | None, _structure_optional_int)
for _enum in (Denominator, ImportanceLevel, Precision, Rows):
    _converter.register_structure_hook(_enum, _structure_enum)
    _converter.register_unstructure_hook(_enum, str)
