"""YAML as this project reads it: safe, small, and with numbers that are numbers."""

from __future__ import annotations

import re
from typing import Any

import yaml

from selfcest_env.errors import ConfigError
from selfcest_env.structure import format_value

MAX_VALUES = 100_000  # of one text, once its aliases are written out
MAX_DEPTH = 200
_BRACKETS = re.compile(r"[][{}]")
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    """Puts texts that the loader would take for numbers in quotes."""


def _read_float(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    """A whole number in exponent notation is an int, so that `compute_tokens: 5e6` is a number of tokens."""
    value = loader.construct_yaml_float(node)
    # Python writes floats below 1e16 without an exponent, so a float that `write_yaml` wrote stays a float.
    is_whole_exponent = _EXPONENT.match(node.value) and value.is_integer() and abs(value) < 1e16
    return int(value) if is_whole_exponent else value


_Loader.add_constructor("tag:yaml.org,2002:float", _read_float)

for _class in (_Loader, _Dumper):  # YAML 1.1 takes 1e-4, without a point, for a text
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml(text: str, what: str) -> Any:
    """The plain values that a text says; nothing in them is shared.

    Raises:
        ConfigError: one line that begins with `what`: no YAML, a key that stands twice, too many values, or one that
            JSON does not know, as a date.
    """
    if _flow_depth(text) > MAX_DEPTH:  # the library's time grows with its square
        raise ConfigError(f"{what} is nested too deeply: more than {MAX_DEPTH} brackets are open at once")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}, what) > MAX_VALUES:
            raise ConfigError(
                f"{what} has more than {MAX_VALUES} values once its aliases (*name) are written out, or an alias "
                "stands inside what it names; write the values out"
            )
        return _unshared(loader.construct_document(node), what)
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply") from error
    except ConfigError:
        raise
    except ValueError as error:  # Python's own, as for a date of month 13 or thousands of digits
        raise ConfigError(f"{what} has a value that cannot be read: {' '.join(str(error).split())}") from error
    except (LookupError, AttributeError) as error:  # the library's, as for `!!bool maybe`
        raise ConfigError(f"{what} has a value that is not what its tag (!!...) says; remove the tag") from error


def read_option(text: str) -> tuple[str, Any]:
    """`key=value` of a command line as the two, the value read as YAML. Raises `ConfigError` that quotes it."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"the option {text!r} is not of the form key=value, as in std_floor=0")
    return key, read_yaml(value, f"the option {text!r}: the value")


def write_yaml(value: object) -> str:
    """Plain values as a text that `read_yaml` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def _flow_depth(text: str) -> int:
    """Most brackets that are open at once, those inside of texts among them."""
    depth = most = 0
    for bracket in _BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        most = max(most, depth)
    return most


def _size(node: yaml.Node, known: dict[int, float], what: str) -> float:
    """How many values a node has with its aliases written out; infinity if it stands inside itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            _check_once(node, what)
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known, what) for part in parts)
    return known[id(node)]


def _check_once(node: yaml.MappingNode, what: str) -> None:
    """YAML's library would take the last of several equal keys."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{what}, line {line}: the key {format_value(key.value)} stands twice; remove one")
            seen.add(key.value)


def _unshared(value: Any, what: str) -> Any:
    """A copy without YAML's aliases: one dict at two places would let an override of one variant change them all."""
    if isinstance(value, dict):
        return {_unshared(key, what): _unshared(item, what) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item, what) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"{what} has {format_value(value)}, which YAML takes for a {type(value).__name__}; write it in quotes"
    )
