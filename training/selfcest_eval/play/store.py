"""A study's memory: what has been played, found again by what it follows from."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from selfcest_env.errors import RecordError
from selfcest_eval.play.results import (
    Result,
    ResultKey,
    Unplayable,
    at_place,
    dump,
    names_in,
    parse_result,
    read_line,
    read_results,
    write_result,
    write_unplayable,
    write_value,
)
from selfcest_training.files import create, open_for_append


class Store:
    """Two files. `played.jsonl` grows while a study plays; `results.jsonl` is the finished study, in its own order.

    What was played and is no part of the study any more stays in `played.jsonl`, so an option that is changed and
    changed back plays nothing twice. A line cut off by a kill is dropped; any other broken line is a `RecordError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._results, self._played = folder / "results.jsonl", folder / "played.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        check_store(folder)
        self._load()
        if self._results.exists():  # while a study plays its results are no whole
            with open_for_append(self._played) as file:
                file.write(self._results.read_bytes())
                _flush(file)
            self._results.unlink()
            self._load()

    def __contains__(self, key: str) -> bool:
        return key in self._offset_of

    def has_episodes(self, played: str) -> bool:
        return played in self._offset_of_episodes

    def find_episodes(self, played: str) -> Result | None:
        """A whole result with episodes that were played like this, whoever's it was."""
        offset = self._offset_of_episodes.get(played)
        return None if offset is None else parse_result(self._data(offset), self._value)

    def add(self, results: Iterable[Result]) -> None:
        """Append; when it returns, a kill cannot lose them."""
        results = list(results)
        if not results:
            return
        with open_for_append(self._played) as file:

            def share(value: object) -> str:
                name, line = write_value(value)
                if name not in self._offset_of_value:
                    self._offset_of_value[name] = file.tell()
                    file.write(line.encode())
                return name

            for result in results:
                line = write_result(result, share)
                self._offset_of[result.key] = self._offset_of_episodes[result.played] = file.tell()
                file.write(line.encode())
            _flush(file)

    def finish(self, order: Iterable[tuple[str, ResultKey]], unplayable: Mapping[str, str]) -> Path:
        """Write `results.jsonl`: the results with these keys, at these places, or why there is none. Returns its path.

        What was unplayable is not remembered: a store that is opened again lacks it.
        """
        partial, kept, written = self._results.with_suffix(".partial"), set[str](), set[str]()
        with create(partial) as file:
            for key, place in order:
                if key in unplayable and key not in self:
                    file.write(write_unplayable(Unplayable(place, unplayable[key])))
                    continue
                data = self._data(self._offset_of[key])
                file.writelines(self._values_of(data, written))
                file.write(at_place(data, place))
                kept.add(key)
            _flush(file)
        partial.rename(self._results)
        self._forget(kept)
        return self._results

    def _forget(self, kept: set[str]) -> None:
        """Leave in `played.jsonl` what `results.jsonl` does not have."""
        partial, written = self._played.with_suffix(".partial"), set[str]()
        with create(partial) as file:
            for offset in (offset for key, offset in self._offset_of.items() if key not in kept):
                data = self._data(offset)
                file.writelines(self._values_of(data, written))
                file.write(dump(data))
            _flush(file)
            empty = file.tell() == 0
        if empty:
            partial.unlink()
            self._played.unlink()
        else:
            partial.rename(self._played)

    def _values_of(self, data: dict[str, Any], written: set[str]) -> Iterator[str]:
        """Lines of the tasks and documents of a result that have not been written yet."""
        for name in names_in(data, self._value):
            if name not in written:
                written.add(name)
                yield dump(self._data(self._offset_of_value[name]))

    def _load(self) -> None:
        self._offset_of: dict[str, int] = {}
        self._offset_of_episodes: dict[str, int] = {}
        self._offset_of_value: dict[str, int] = {}
        if not self._played.exists():
            return
        offset = number = 0
        with self._played.open("rb") as file:
            for line in file:
                number += 1
                if not line.endswith(b"\n"):
                    break
                try:
                    data = read_line(line)
                    if "shared" in data:
                        self._offset_of_value[data["shared"]] = offset
                    elif "unplayable" not in data:
                        result = parse_result(data, None)
                        self._offset_of[result.key] = self._offset_of_episodes[result.played] = offset
                except RecordError as error:
                    raise RecordError(f"{self._played}, line {number}: {error}") from error
                offset += len(line)
        with open_for_append(self._played) as file:
            file.truncate(offset)

    def _value(self, name: str) -> Any:
        if name not in self._offset_of_value:
            raise RecordError(
                f"{self._played} has lost a task or a document ({name}); remove the file to play its results again"
            )
        return self._data(self._offset_of_value[name])["value"]

    def _data(self, offset: int) -> dict[str, Any]:
        with self._played.open("rb") as file:
            file.seek(offset)
            return read_line(file.readline())


def check_store(folder: Path) -> None:
    """Raise `RecordError` that names the line if a store would refuse a folder. Nothing there is changed."""
    for file in (folder / "results.jsonl", folder / "played.jsonl"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cut last line is played again
            for _ in read_results(file) if file.exists() else ():
                pass


def _flush(file: IO[Any]) -> None:
    """To the disk, not only to the system."""
    file.flush()
    os.fsync(file.fileno())
