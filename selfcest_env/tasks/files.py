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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from selfcest_env.errors import DataError, did_you_mean

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
    """

    file: str
    number: int
    data: Mapping[str, Any]
    inside: str = ""
    unit: str = "record"

    def text(self, key: str) -> str:
        return self._typed(key, str, "a string")

    def whole(self, key: str) -> int:
        return self._typed(key, int, "a whole number")

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        items = self.items(key)
        if any(not isinstance(item, str) for item in items):
            raise self.bad(key, "a list of strings")
        return tuple(items)

    def part(self, key: str) -> Record:
        """The object under a key."""
        data = self._typed(key, dict, "an object")
        return Record(self.file, self.number, data, f"{self.inside}{key}.", self.unit)

    def parts(self, key: str) -> tuple[Record, ...]:
        """A list of objects."""
        items = self.items(key)
        if any(not isinstance(item, dict) for item in items):
            raise self.bad(key, "a list of objects")
        return tuple(
            Record(self.file, self.number, item, f"{self.inside}{key}[{i}].", self.unit) for i, item in enumerate(items)
        )

    def has(self, key: str) -> bool:
        """Whether there is such a key, and not null."""
        return self.data.get(key) is not None

    def bad(self, key: str, expected: str) -> DataError:
        """The error to raise for a key that is missing or holds something else than was `expected`."""
        where = f"{self.file}, {self.unit} {self.number}"
        if key in self.data:
            return DataError(f"{where}: {self.inside}{key} is {shortened(self.data[key])}; expected {expected}")
        found = [str(name) for name in self.data]
        return DataError(
            f"{where}: {self.inside}{key} is missing; expected {expected}. Keys found: {', '.join(found) or 'none'}."
            f"{did_you_mean(key, found)}"
        )

    def _typed(self, key: str, type_: type[T], expected: str) -> T:
        value = self.data.get(key)
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            raise self.bad(key, expected)
        return value


def read_records(path: str) -> Iterator[Record]:
    """The records of a file, of all files of a folder in the order of their names, or of a data set on the hub.

    Raises:
        DataError: nothing there, or a file that cannot be read, with file, record number and what is wrong.
    """
    if path.startswith(HUB):
        yield from (Record(path, number, row) for number, row in enumerate(_hub_rows(path), 1))
        return
    for file in data_files(path):
        text = read_text(file)
        yield from (_csv_records if file.suffix == ".csv" else _json_records)(str(file), text)


def data_files(path: str, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """The file a path names, or all files with these suffixes under the folder it names, in the order of their names.

    `~` and environment variables are expanded.
    """
    place = Path(os.path.expanduser(os.path.expandvars(path)))
    if place.is_file():
        return [place]
    if not place.is_dir():
        hint = "; is the environment variable set?" if "$" in str(place) else ""
        raise DataError(f"{place}: no such file or folder; give a path, or {HUB}OWNER/NAME[/CONFIG][:SPLIT]{hint}")
    found = [file for file in place.rglob("*") if file.suffix in suffixes and file.is_file()]
    if not found:
        raise DataError(f"{place}: no file in this folder ends in {', '.join(suffixes)}")
    return sorted(found, key=lambda file: _natural(file.relative_to(place).as_posix()))


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
    files = data_files(path, suffixes)
    for file in files:
        if len(files) > 1:
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _natural(name: str) -> list[tuple[int, str]]:
    """`10.json` comes after `9.json`."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", name)]


# JSON


def _json_records(file: str, text: str) -> Iterator[Record]:
    """The objects of one JSON array, or of a file of JSON objects one after another, as in JSON lines."""
    decoder = json.JSONDecoder()
    start = _skip(text, 0)
    array = text.startswith("[", start)
    if not array and not text.startswith("{", start):
        raise DataError(f"{file}: neither a JSON array nor JSON lines; it begins with {shortened(text[start:][:20])}")
    position, number = _skip(text, start + array), 1
    end = text.startswith("]", position) if array else position == len(text)
    while not end:
        try:
            data, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
            raise DataError(
                f"{file}, record {number}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
                f"{' (is the file truncated?)' if cut else ''}"
            ) from error
        if not isinstance(data, dict):
            raise DataError(f"{file}, record {number}: {shortened(data)}; expected an object")
        yield Record(file, number, data)
        position = _skip(text, position)
        end = text.startswith("]", position) if array else position == len(text)
        if array and not end:
            position = _comma(file, text, position, number)
        number += 1
    if array and _skip(text, position + 1) != len(text):
        raise DataError(f"{file}: more text after the closing ']' of the array")


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
    number = 0
    try:
        for number, row in enumerate(rows):
            if not header:
                header = row
            elif len(row) != len(header):
                raise DataError(
                    f"{file}, record {number}: {len(row)} cells (up to line {rows.line_num}); expected {len(header)}: "
                    f"{', '.join(header)}"
                )
            else:
                yield Record(file, number, dict(zip(header, row, strict=True)))
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
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f"{path}: reading from the hub needs the package datasets (pip install 'selfcest[hub]'); without it, "
            "download the official file and give its path"
        ) from error
    try:
        rows = datasets.load_dataset(match["id"], match["config"], split=match["split"] or "train")
        return tuple(dict(row) for row in rows)
    except Exception as error:
        raise DataError(
            f"{path}: datasets could not load this: {type(error).__name__}: {error}; check id, config, split and the "
            "network, or give the path of the official file"
        ) from error
