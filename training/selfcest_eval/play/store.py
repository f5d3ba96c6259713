"""The stored results of a study, found by digests of everything that they follow from."""

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
    dump_line,
    iter_shared_names,
    parse_result,
    read_line,
    read_results,
    write_at,
    write_result,
    write_unplayable,
    write_value,
)
from selfcest_training.files import create_text_file, open_for_append


class Store:
    """The results of a study in two files.

    `played.jsonl` grows while a study plays. `results.jsonl` is the finished study, in the order of the config. Results
    that the config no longer needs stay in `played.jsonl`, so an option that is changed and changed back plays nothing
    twice.

    Raises:
        RecordError: a line is damaged. A last line that a killed process left incomplete is dropped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._results = folder / "results.jsonl"
        self._played = folder / "played.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        check_store(folder)
        self._load()
        if self._results.exists():  # a study that plays has no finished results
            with open_for_append(self._played) as file:
                # A kill before the file is removed leaves results twice, which does no harm: the last one counts.
                file.write(self._results.read_bytes())
                _flush(file)
            self._results.unlink()
            self._load()

    def __contains__(self, key: str) -> bool:
        return key in self._offset_of

    def has_episodes(self, played: str) -> bool:
        return played in self._offset_of_episodes

    def find_episodes(self, played: str) -> Result | None:
        """Return a result with episodes of this digest, from any strategy; `None` if there is none."""
        offset = self._offset_of_episodes.get(played)
        return None if offset is None else parse_result(self._data(offset), self._value)

    def add(self, results: Iterable[Result]) -> None:
        """Append results. They are on the disk when it returns, so a kill cannot lose them."""
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
                self._offset_of[result.key] = file.tell()
                self._offset_of_episodes[result.played] = file.tell()
                file.write(line.encode())
            _flush(file)

    def finish(self, order: Iterable[tuple[str, ResultKey]], unplayable: Mapping[str, str]) -> Path:
        """Write `results.jsonl` and return its path.

        The causes of unplayable results are only in this file, so a resumed study plays these results again.

        Args:
            order: keys and places of the results.
            unplayable: causes by the key of the result that could not be played.
        """
        partial = self._results.with_suffix(".partial")
        finished_keys: set[str] = set()
        written: set[str] = set()
        with create_text_file(partial) as file:
            for key, place in order:
                if key in unplayable and key not in self:
                    file.write(write_unplayable(Unplayable(place, unplayable[key])))
                    continue
                data = self._data(self._offset_of[key])
                file.writelines(self._shared_lines(data, written))
                file.write(write_at(data, place))
                finished_keys.add(key)
            _flush(file)
        # Results are in the complete file before they leave the other one, so a kill between the two loses none.
        partial.rename(self._results)
        self._remove_from_played(finished_keys)
        return self._results

    def _remove_from_played(self, keys: set[str]) -> None:
        """Remove results from `played.jsonl`, and the file if no result is left."""
        partial = self._played.with_suffix(".partial")
        written: set[str] = set()
        with create_text_file(partial) as file:
            for key, offset in self._offset_of.items():
                if key in keys:
                    continue
                data = self._data(offset)
                file.writelines(self._shared_lines(data, written))
                file.write(dump_line(data))
            _flush(file)
            is_empty = file.tell() == 0
        if is_empty:
            partial.unlink()
            self._played.unlink()
        else:
            partial.rename(self._played)

    def _shared_lines(self, data: dict[str, Any], written: set[str]) -> Iterator[str]:
        """Yield the lines of the tasks and documents of a result that are not in `written`, and add them to it."""
        for name in iter_shared_names(data, self._value):
            if name not in written:
                written.add(name)
                yield dump_line(self._data(self._offset_of_value[name]))

    def _load(self) -> None:
        """Read the offset of every line of `played.jsonl`, and cut off an incomplete last line."""
        # Only offsets are kept in memory, since the results of a study with their episodes may be larger than it.
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
                        self._offset_of[result.key] = offset
                        self._offset_of_episodes[result.played] = offset
                except RecordError as error:
                    raise RecordError(f"{self._played}, line {number}: {error}") from error
                offset += len(line)
        with open_for_append(self._played) as file:
            file.truncate(offset)

    def _value(self, name: str) -> Any:
        if name not in self._offset_of_value:
            raise RecordError(
                f"{self._played} lacks a task or a document ({name}); remove the file to play its results again"
            )
        return self._data(self._offset_of_value[name])["value"]

    def _data(self, offset: int) -> dict[str, Any]:
        with self._played.open("rb") as file:
            file.seek(offset)
            return read_line(file.readline())


def check_store(folder: Path) -> None:
    """Raise `RecordError` that names the damaged line of a folder, if there is one. The folder is only read."""
    for file in (folder / "results.jsonl", folder / "played.jsonl"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the result of an incomplete last line is played again
            for _ in read_results(file) if file.exists() else ():
                pass


def _flush(file: IO[Any]) -> None:
    """Write to the disk, and not only to the cache of the operating system."""
    file.flush()
    os.fsync(file.fileno())
