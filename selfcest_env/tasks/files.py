"""Data sets on disk or on the Hugging Face hub: records with typed access, whose errors name file, record and key.

`path` may be a file (a JSON array, JSON lines, CSV), a folder of such files, or `hub:OWNER/NAME[/CONFIG][:SPLIT]`. Only
the last needs the package `datasets` and a network. Records count from 1.
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
from collections.abc import Iterable, Iterator, Mapping
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
    """One record of a file, or an object inside one.

    Attributes:
        file: path or hub id it came from.
        number: its place in that file, from 1.
        data: what it holds, as parsed.
        inside: for an object inside a record the way to it, `paragraphs[2].`; else empty.
        unit: what the number counts.
        line: of the file on which it begins, from 1; 0 if there are no lines.
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
        """A list of strings."""
        items = self.items(key)
        if any(not isinstance(item, str) for item in items):
            raise self.mismatch(key, "a list of strings")
        return tuple(items)

    def part(self, key: str) -> Record:
        """The object under a key."""
        data = self._typed(key, dict, "an object")
        return replace(self, data=data, inside=f"{self.inside}{key}.")

    def parts(self, key: str) -> tuple[Record, ...]:
        """A list of objects."""
        items = self.items(key)
        if any(not isinstance(item, dict) for item in items):
            raise self.mismatch(key, "a list of objects")
        return tuple(replace(self, data=item, inside=f"{self.inside}{key}[{i}].") for i, item in enumerate(items))

    def has(self, key: str) -> bool:
        """Whether there is such a key, and not null."""
        return self.data.get(key) is not None

    @property
    def place(self) -> str:
        """File, line and number, for people."""
        return _place(self.file, self.line, self.unit, self.number)

    def mismatch(self, key: str, expected: str) -> DataError:
        """The error to raise for a key that is missing or holds something else than was `expected`."""
        if key in self.data:
            return self.error(key, f"is {shorten_repr(self.data[key])}; expected {expected}")
        found = [str(name) for name in self.data]
        return self.error(
            key,
            f"is missing; expected {expected}. Keys found: {', '.join(found) or 'none'}.{did_you_mean(key, found)}",
        )

    def error(self, key: str, said: str) -> DataError:
        """The error to raise for a key, or a part of what it holds, with what is wrong about it."""
        return DataError(f"{self.place}: {self.inside}{key} {said}")

    def _typed(self, key: str, type_: type[T], expected: str) -> T:
        value = self.data.get(key)
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            raise self.mismatch(key, expected)
        return value


def read_records(path: str) -> Iterator[Record]:
    """The records of a file, of all files of a folder in the order of their names, or of a data set on the hub.

    Raises:
        DataError: nothing there, or a file that cannot be read, with file, record number and what is wrong.
    """
    if path.startswith(HUB):
        yield from (Record(path, number, row) for number, row in enumerate(_hub_rows(path), 1))
        return
    for file in list_files(path):
        text = read_text(file)
        yield from (_csv_records if file.suffix == ".csv" else _json_records)(str(file), text)


def list_files(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """The file a path names, or all files with these suffixes under the folder it names, in the order of their names.

    `~` and environment variables are expanded.
    """
    place = expand_path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        hint = "; is the environment variable set?" if "$" in str(place) else ""
        raise DataError(f"{place}: no such file or folder; give a path, or {HUB}OWNER/NAME[/CONFIG][:SPLIT]{hint}")
    found = [file for file in place.rglob("*") if file.suffix in suffixes and file.is_file()]
    if not found:
        raise DataError(f"{place}: no file in this folder ends in {', '.join(suffixes)}")
    return sorted(found, key=lambda file: _natural(file.relative_to(place).as_posix()))


def expand_path(path: str) -> Path:
    """The path, with `~` and environment variables expanded."""
    return Path(os.path.expanduser(os.path.expandvars(path)))


def read_text(file: Path) -> str:
    """A text file in UTF-8, line ends as they are."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text at byte {error.start}; is it compressed?") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def content_digest(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """16 hexadecimal digits: of a file's bytes, of the names and bytes of a folder's files, or of a hub set's rows."""
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
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _place(file: str, line: int, unit: str, number: int) -> str:
    return f"{file}{f':{line}' if line else ''}, {unit} {number}"


def _natural(name: str) -> list[tuple[int, str]]:
    """`10.json` comes after `9.json`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", name)]


# JSON


def _json_records(file: str, text: str) -> Iterator[Record]:
    """The objects of one JSON array, or of a file of JSON objects one after another, as in JSON lines."""
    start = _skip(text, 0)
    array = text.startswith("[", start)
    if not array and not text.startswith("{", start):
        raise DataError(
            f"{file}: neither a JSON array nor JSON lines; it begins with {shorten_repr(text[start:][:20])}"
        )
    position, number = _skip(text, start + array), 1
    line, counted = 1, 0
    end = text.startswith("]", position) if array else position == len(text)
    while not end:
        line, counted = line + text.count("\n", counted, position), position
        data, position = _json_object(_place(file, line, "record", number), text, position)
        yield Record(file, number, data, line=line)
        position = _skip(text, position)
        end = text.startswith("]", position) if array else position == len(text)
        if array and not end:
            position = _comma(file, text, position, number)
        number += 1
    if array and _skip(text, position + 1) != len(text):
        raise DataError(f"{file}: more text after the closing ']' of the array")


class _Repeated(Exception):
    """A key that stands twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Repeated(next(key for key in keys if keys.count(key) > 1))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_ESCAPED, _HALF = re.compile(r"\\u[dD][89a-fA-F]"), re.compile("[\ud800-\udfff]")


def _json_object(place: str, text: str, start: int) -> tuple[dict[str, Any], int]:
    """The object that begins here, and where it ends."""
    try:
        data, end = _DECODER.raw_decode(text, start)
        lone = _lone_surrogate(data, "") if _ESCAPED.search(text, start, end) else ""
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        raise DataError(
            f"{place}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
            f"{' (is the file truncated?)' if cut else ''}"
        ) from error
    except _Repeated as error:
        raise DataError(f"{place}: the key {shorten_repr(error.args[0])} stands twice in one object") from error
    except RecursionError as error:
        raise DataError(f"{place}: nested too deeply to be read") from error
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        raise DataError(f"{place}: holds an integer of more than {most} digits, which are not read") from error
    if lone:
        raise DataError(f"{place}: {lone} holds half a character, a surrogate without its partner (\\ud800 to \\udfff)")
    if not isinstance(data, dict):
        raise DataError(f"{place}: {shorten_repr(data)}; expected an object")
    return data, end


def _lone_surrogate(value: object, way: str) -> str:
    """The way to the first text that no encoding can write; empty if there is none."""
    if isinstance(value, str):
        return way if _HALF.search(value) else ""
    inside: Iterable[tuple[str, object]] = ()
    if isinstance(value, list):
        inside = ((f"{way}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        named = [(f"{way}{'.' if way else ''}{ascii(key)[1:-1]}", key) for key in value]
        inside = [*named, *((place, value[key]) for place, key in named)]
    return next(filter(None, (_lone_surrogate(item, place) for place, item in inside)), "")


def _comma(file: str, text: str, position: int, number: int) -> int:
    """The start of the record after the comma that must stand here."""
    if position == len(text):
        raise DataError(f"{file}: the file ends after record {number} without the closing ']' (is it truncated?)")
    if not text.startswith(",", position):
        raise DataError(f"{file}, record {number}: followed by {text[position]!r}; expected ',' or ']'")
    return _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


# CSV


def _csv_records(file: str, text: str) -> Iterator[Record]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    number, line = 0, 1
    try:
        for number, row in enumerate(rows):
            first, line = line, rows.line_num + 1
            if not header:
                header = row
                if len({*row}) < len(row):
                    raise DataError(f"{file}: two columns of one name: {', '.join(row)}")
            elif len(row) != len(header):
                place = _place(file, first, "record", number)
                raise DataError(f"{place}: {len(row)} cells; expected {len(header)}: {', '.join(header)}")
            else:
                yield Record(file, number, dict(zip(header, row, strict=True)), line=first)
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
        raise DataError(f"{path}: not of the form {HUB}OWNER/NAME[/CONFIG][:SPLIT], as in {HUB}openai/gsm8k/main:test")
    if is_read_only():
        raise DataError(
            f"{path} is on the hub, and a command that only looks contacts no network; download the official file and "
            "give its path"
        )
    try:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read at the import
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
