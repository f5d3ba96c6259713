"""Config files: YAML, `extends`, overrides from the command line, and errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from selfcest_env.errors import ConfigError
from selfcest_env.structure import plain, show, structure
from selfcest_training.config import RunConfig
from selfcest_training.files import digest
from selfcest_training.yaml_text import read_yaml, write_yaml

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
    data = read_yaml(_text(path), str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; expected a mapping of config keys")
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str) or not base.isprintable():
        raise ConfigError(f"{path}: extends is {show(base)}; expected the path of another config file")
    return _merged(_read(path.parent / base, (*seen, path.resolve())), data)


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
        if isinstance(old, dict) and value is None:  # a strategy, an arm, a family that is not wanted here
            del merged[key]
    return merged


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Plain values to a `RunConfig`; unknown keys and wrong types are errors that name the key."""
    return parse_as(RunConfig, data)


def parse_as(kind: type[T], data: Mapping[str, Any]) -> T:
    """Plain values to a config dataclass; unknown keys and wrong types are errors that name the key."""
    return structure(data, kind)


def dump_config(config: object) -> str:
    """The whole config as YAML, defaults written out; its own loader reads it back."""
    return write_yaml(plain(config))


def dump_run(config: RunConfig) -> str:
    """What makes a run the same run, as YAML that `load_config` reads: all but the machines that it runs on."""
    return write_yaml(_run_values(config))


def _run_values(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in plain(config).items() if key != "cluster"}


# Keys of configs that were renamed, each with the name that it had when it was first stored. Digests of configs are of
# those names, so that stored cells and checkpoints still match their configs when a key is renamed.
STORED_KEYS: dict[str, str] = {}


def with_stored_keys(data: Any) -> Any:
    """Plain values of a config with every key as digests have it."""
    if isinstance(data, Mapping):
        return {STORED_KEYS.get(key, key): with_stored_keys(value) for key, value in data.items()}
    return [with_stored_keys(value) for value in data] if isinstance(data, list) else data


def run_digest(config: RunConfig) -> str:
    """The digest of `dump_run` that checkpoints hold."""
    return digest(write_yaml(with_stored_keys(_run_values(config))))


def shipped_config(name: str) -> Path:
    """A config that comes with the project: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
    places = (package.parent / "configs" / name, package / "configs" / name)
    return next((place for place in places if place.is_file()), places[0])


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set what `key.path=value` names, the value read as YAML. Raises `ConfigError` that quotes it."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {show(override)} is not of the form key.path=value, as in rl.steps=10")
    value = read_yaml(text, f"override {show(override)}: the value")
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
        length = f"a list of {len(node)}" if isinstance(node, list) else show(node)
        raise ConfigError(f"override {show(override)}: {show(key)} leads nowhere in {length}")
    return int(key)
