"""Read data sets from disk or from the Hugging Face hub, as records with typed access.

A path is a file (a JSON array, JSON lines, CSV), a folder of such files, or `hub:OWNER/NAME[/CONFIG][:SPLIT]`. Only the
hub needs the package `datasets` and a network. Errors name the file, the record (counted from 1) and the key.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from selfcest_env.errors import DataError, did_you_mean, install_hint
from selfcest_env.plugin import is_read_only

T = TypeVar("T")
HUB = "hub:"
SUFFIXES = (".json", ".jsonl", ".csv")
_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.\[\]%:+-]+))?")
_BLANK = re.compile(r"\s*")


@dataclass(frozen=True)
class Record:
    """A record of a file, or an object inside a record.

    Attributes:
        file: path or hub id of the file.
        number: number of the record in the file, from 1.
        data: the parsed content.
        inside: path to an object inside a record, such as `paragraphs[2].`; empty for a record.
        unit: noun for `number` in messages.
        line: line of the file on which the record begins, from 1; 0 if the file has no lines.
    """

    file: str
    number: int
    data: Mapping[str, Any]
    inside: str = ""
    unit: str = "record"
    line: int = 0

    def text(self, key: str) -> str:
        return self._typed(key, str, "a string")

    def integer(self, key: str) -> int:
        return self._typed(key, int, "a whole number")

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        items = self.items(key)
        if any(not isinstance(item, str) for item in items):
            raise self.mismatch(key, "a list of strings")
        return tuple(items)

    def part(self, key: str) -> Record:
        """Return the object under a key."""
        data = self._typed(key, dict, "an object")
        return replace(self, data=data, inside=f"{self.inside}{key}.")

    def parts(self, key: str) -> tuple[Record, ...]:
        """Return a list of objects."""
        items = self.items(key)
        if any(not isinstance(item, dict) for item in items):
            raise self.mismatch(key, "a list of objects")
        return tuple(replace(self, data=item, inside=f"{self.inside}{key}[{i}].") for i, item in enumerate(items))

    def has(self, key: str) -> bool:
        """Return whether the key exists and its value is not null."""
        return self.data.get(key) is not None

    @property
    def place(self) -> str:
        """The file, line and number, for messages."""
        return _place(self.file, self.line, self.unit, self.number)

    def mismatch(self, key: str, expected: str) -> DataError:
        """Return the error for a key that is missing, or whose value is not what was expected."""
        if key in self.data:
            return self.error(key, f"is {shorten_repr(self.data[key])}; expected {expected}")
        keys = [str(name) for name in self.data]
        return self.error(
            key,
            f"is missing; expected {expected}.{did_you_mean(key, keys)} Keys found: {', '.join(keys) or 'none'}",
        )

    def error(self, key: str, problem: str) -> DataError:
        """Return the error for a key, with a predicate that says what is wrong."""
        return DataError(f"{self.place}: {self.inside}{key} {problem}")

    def _typed(self, key: str, type_: type[T], expected: str) -> T:
        value = self.data.get(key)
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            raise self.mismatch(key, expected)
        return value


def read_records(path: str) -> Iterator[Record]:
    """Yield the records of a file, of all files of a folder in the order of their names, or of a data set on the hub.

    Raises:
        DataError: the path names nothing, or a file cannot be read. The message names the file and the record.
    """
    if path.startswith(HUB):
        yield from (Record(path, number, row) for number, row in enumerate(_hub_rows(path), 1))
        return
    for file in list_files(path):
        text = read_text(file)
        if file.suffix == ".csv":
            yield from _csv_records(str(file), text)
        else:
            yield from _json_records(str(file), text)


def list_files(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """Return the file that a path names, or all files with these suffixes under a folder, in the order of their names.

    `~` and environment variables are expanded.
    """
    root = expand_path(path)
    if root.is_file():
        return [root]
    if not root.is_dir():
        hint = "; is the environment variable set?" if "$" in str(root) else ""
        raise DataError(f"{root}: no such file or folder; give a path, or {HUB}OWNER/NAME[/CONFIG][:SPLIT]{hint}")
    files = [file for file in root.rglob("*") if file.suffix in suffixes and file.is_file()]
    if not files:
        raise DataError(f"{root}: no file in this folder ends in {', '.join(suffixes)}")
    return sorted(files, key=lambda file: _natural_order(file.relative_to(root).as_posix()))


def expand_path(path: str) -> Path:
    """Expand `~` and environment variables in a path."""
    return Path(os.path.expanduser(os.path.expandvars(path)))


def read_text(file: Path) -> str:
    """Read a text file in UTF-8, without any change of line ends."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text at byte {error.start}; is it compressed?") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def content_digest(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """Return a digest of a file's bytes, of the names and bytes of a folder's files, or of the rows of a hub data set.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    if path.startswith(HUB):
        for row in _hub_rows(path):
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()
    files = list_files(path, suffixes)
    for file in files:
        if len(files) > 1:
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def shorten_repr(value: object) -> str:
    """Return the `repr` of a value, cut to 80 characters."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _place(file: str, line: int, unit: str, number: int) -> str:
    return f"{file}{f':{line}' if line else ''}, {unit} {number}"


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `10.json` comes after `9.json`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", name)]


# JSON


def _json_records(file: str, text: str) -> Iterator[Record]:
    """Yield the objects of a JSON array, or those of JSON lines, which may also span several lines.

    A record is parsed only when it is reached, so that an error names its number.
    """
    start = _skip_space(text, 0)
    is_array = text.startswith("[", start)
    if not is_array and not text.startswith("{", start):
        raise DataError(
            f"{file}: neither a JSON array nor JSON lines; it begins with {shorten_repr(text[start:][:20])}"
        )
    position = _skip_space(text, start + is_array)
    number = 1
    line = 1
    counted = 0  # lines are counted up to this position
    end = text.startswith("]", position) if is_array else position == len(text)
    while not end:
        line += text.count("\n", counted, position)
        counted = position
        data, position = _json_object(_place(file, line, "record", number), text, position)
        yield Record(file, number, data, line=line)
        position = _skip_space(text, position)
        end = text.startswith("]", position) if is_array else position == len(text)
        if is_array and not end:
            position = _skip_comma(file, text, position, number)
        number += 1
    if is_array and _skip_space(text, position + 1) != len(text):
        raise DataError(f"{file}: more text after the closing ']' of the array")


class _RepeatedKeyError(Exception):
    """Raised for an object with two equal keys, of which `json` would silently keep the last."""


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _RepeatedKeyError(next(key for key in keys if keys.count(key) > 1))
    return data


_DECODER = json.JSONDecoder(object_pairs_hook=_build_object)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _json_object(place: str, text: str, start: int) -> tuple[dict[str, Any], int]:
    """Parse the object that begins at a position, and return it with the position after it."""
    try:
        data, end = _DECODER.raw_decode(text, start)
        surrogate_path = _find_surrogate(data, "") if _ESCAPED_SURROGATE.search(text, start, end) else ""
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        raise DataError(
            f"{place}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
            f"{' (is the file truncated?)' if is_cut else ''}"
        ) from error
    except _RepeatedKeyError as error:
        raise DataError(f"{place}: the key {shorten_repr(error.args[0])} occurs twice in one object") from error
    except RecursionError as error:
        raise DataError(f"{place}: nested too deeply to be read") from error
    except ValueError as error:
        max_digits = sys.get_int_max_str_digits()
        raise DataError(f"{place}: holds an integer of more than {max_digits} digits, the limit of Python") from error
    if surrogate_path:
        raise DataError(
            f"{place}: {surrogate_path} holds half a character, a surrogate without its partner (\\ud800 to \\udfff)"
        )
    if not isinstance(data, dict):
        raise DataError(f"{place}: {shorten_repr(data)}; expected an object")
    return data, end


def _find_surrogate(value: object, path: str) -> str:
    """Return the path to the first text with a lone surrogate, which no encoding can write; empty if there is none."""
    if isinstance(value, str):
        return path if _SURROGATE.search(value) else ""
    items: list[tuple[str, object]] = []
    if isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        # A key is a text too. Its path is written in ASCII, so that the message itself can be encoded.
        keys = [(f"{path}{'.' if path else ''}{ascii(key)[1:-1]}", key) for key in value]
        items = [*keys, *((key_path, value[key]) for key_path, key in keys)]
    for item_path, item in items:
        surrogate_path = _find_surrogate(item, item_path)
        if surrogate_path:
            return surrogate_path
    return ""


def _skip_comma(file: str, text: str, position: int, number: int) -> int:
    """Return the position of the record after the comma at this position."""
    if position == len(text):
        raise DataError(f"{file}: the file ends after record {number} without the closing ']' (is it truncated?)")
    if not text.startswith(",", position):
        raise DataError(f"{file}, record {number}: followed by {text[position]!r}; expected ',' or ']'")
    return _skip_space(text, position + 1)


def _skip_space(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


# CSV


def _csv_records(file: str, text: str) -> Iterator[Record]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    number = 0
    next_line = 1
    try:
        # The header is row 0, so that records count from 1.
        for number, row in enumerate(rows):
            line = next_line
            next_line = rows.line_num + 1
            if not header:
                header = row
                if len({*row}) < len(row):
                    raise DataError(f"{file}: two columns have the same name: {', '.join(row)}")
            elif not row:
                continue
            elif len(row) != len(header):
                place = _place(file, line, "record", number)
                raise DataError(f"{place}: {len(row)} cells; expected {len(header)}: {', '.join(header)}")
            else:
                yield Record(file, number, dict(zip(header, row, strict=True)), line=line)
    except csv.Error as error:
        raise DataError(
            f"{file}, record {number + 1}: not valid CSV near line {rows.line_num}: {error} (is the file truncated?)"
        ) from error
    if not header:
        raise DataError(f"{file}: empty; expected a line of column names")


# The hub


@functools.lru_cache(maxsize=4)
def _hub_rows(path: str) -> tuple[Mapping[str, Any], ...]:
    match = _HUB_ID.fullmatch(path.removeprefix(HUB))
    if match is None:
        raise DataError(f"{path}: expected {HUB}OWNER/NAME[/CONFIG][:SPLIT], such as {HUB}openai/gsm8k/main:test")
    if is_read_only():
        raise DataError(
            f"{path} is on the hub, and a read-only command uses no network; download the official file and "
            "give its path"
        )
    try:
        # The library reads this variable when it is imported.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f"{path}: reading from the hub needs the package datasets; download the official file and give its path, "
            f"or run: {install_hint('hub')}"
        ) from error
    try:
        rows = datasets.load_dataset(match["id"], match["config"], split=match["split"] or "train")
        return tuple(dict(row) for row in rows)
    except Exception as error:
        raise DataError(
            f"{path}: datasets could not load this: {type(error).__name__}: {error}; check id, config, split and the "
            "network, or give the path of the official file"
        ) from error
