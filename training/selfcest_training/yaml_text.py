"""Reads and writes YAML: safely, with bounds on its size, and with exponent notation as numbers."""

from __future__ import annotations

import itertools
import re
from typing import Any

import yaml

from selfcest_env.errors import ConfigError
from selfcest_env.structure import format_value

# Largest number of values of one text, with its aliases written out.
MAX_VALUES = 100_000
# Largest number of brackets that are open at once.
MAX_DEPTH = 200
_BRACKETS = re.compile(r"[][{}]")
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    pass


class _Dumper(yaml.SafeDumper):
    """Writes texts in quotes if the loader would read them as numbers."""


def _read_float(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    """A whole number in exponent notation is an int, so that `compute_tokens: 5e6` is a number of tokens."""
    value = loader.construct_yaml_float(node)
    # Python writes floats below 1e16 without an exponent, so a float that `write_yaml` wrote stays a float.
    is_whole_exponent = _EXPONENT.match(node.value) and value.is_integer() and abs(value) < 1e16
    return int(value) if is_whole_exponent else value


_Loader.add_constructor("tag:yaml.org,2002:float", _read_float)

# YAML 1.1 reads 1e-4, without a point, as a text.
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml(text: str, what: str) -> Any:
    """Read the plain values of a text. No list or mapping in them is shared.

    Args:
        text: the YAML text.
        what: name of the text, with which errors begin.

    Raises:
        ConfigError: the text is no YAML, has a key twice, too many values, or a value without JSON form, as a date.
    """
    # The library's time grows with the square of the depth.
    if _count_open_brackets(text) > MAX_DEPTH:
        raise ConfigError(f"{what} is nested too deeply: more than {MAX_DEPTH} brackets are open at once")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _count_values(node, {}, what) > MAX_VALUES:
            raise ConfigError(
                f"{what} has more than {MAX_VALUES} values once its aliases (*name) are written out, or an alias "
                "stands inside what it names; write the values out"
            )
        return _copy_unshared(loader.construct_document(node), what)
    except yaml.YAMLError as error:
        raise ConfigError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply") from error
    except ConfigError:
        raise
    # From Python itself, as for a date with month 13 or a number with thousands of digits.
    except ValueError as error:
        raise ConfigError(f"{what} has a value that cannot be read: {' '.join(str(error).split())}") from error
    # From the library, as for `!!bool maybe`.
    except (LookupError, AttributeError) as error:
        raise ConfigError(f"{what} has a value that is not what its tag (!!...) says; remove the tag") from error


def read_option(text: str) -> tuple[str, Any]:
    """Split `key=value` of a command line and read the value as YAML. Raises `ConfigError` for a wrong option."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"the option {text!r} is not of the form key=value, as in std_floor=0")
    return key, read_yaml(value, f"the option {text!r}: the value")


def write_yaml(value: object) -> str:
    """Write plain values as a text that `read_yaml` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def _count_open_brackets(text: str) -> int:
    """Count the brackets that are open at once, at most. Brackets in quoted texts count too."""
    depth = 0
    max_depth = 0
    for bracket in _BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        max_depth = max(max_depth, depth)
    return max_depth


def _count_values(node: yaml.Node, counts: dict[int, float], what: str) -> float:
    """Count the values of a node with its aliases written out; infinity for a node that contains itself.

    Args:
        node: the node.
        counts: counts of nodes by identity, to which this node is added.
        what: name of the text, for errors.
    """
    if id(node) in counts:
        return counts[id(node)]
    # A node that is met again before its count is known contains itself.
    counts[id(node)] = float("inf")
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        _check_unique_keys(node, what)
        children = list(itertools.chain.from_iterable(node.value))
    counts[id(node)] = 1 + sum(_count_values(child, counts, what) for child in children)
    return counts[id(node)]


def _check_unique_keys(node: yaml.MappingNode, what: str) -> None:
    """Raise `ConfigError` for a key that stands twice. The library would use the last one."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{what}, line {line}: the key {format_value(key.value)} stands twice; remove one")
            seen.add(key.value)


def _copy_unshared(value: Any, what: str) -> Any:
    """Copy a value so that no dict or list stands at two places, where an override of one would change both."""
    if isinstance(value, dict):
        return {_copy_unshared(key, what): _copy_unshared(item, what) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_unshared(item, what) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(
        f"{what} has {format_value(value)}, which YAML takes for a {type(value).__name__}; write it in quotes"
    )
