"""The base class of sources that read a finite set of tasks from files, with their split into parts."""

from __future__ import annotations

import hashlib
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import PurePath
from typing import Annotated, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from selfcest_env.errors import DataError, SelfcestError, TaskError
from selfcest_env.structure import Between, Checked, OneOf, Share
from selfcest_env.tasks.files import HUB, SUFFIXES, Record, content_digest, read_records, shorten_repr
from selfcest_env.tasks.source import Identifies, make_task
from selfcest_env.tasks.splits import TEST, TRAIN
from selfcest_env.types import Scalar, Task

T = TypeVar("T")
ALL = "all"
MAX_SEED = 2**63 - 1


@runtime_checkable
class FiniteSource(Identifies, Protocol):
    """A source that can list all its tasks, for evaluation on a whole set and for contamination checks."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def identity(self, task: Task) -> str: ...

    def tasks(self) -> tuple[Task, ...]: ...


def squeeze(text: str) -> str:
    """Return only the letters and digits of a text, in lower case, so that typesetting does not matter."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def identity_part(identity: str, test_fraction: float, seed: int = 0) -> str:
    """Return the part of a problem, which depends only on its identity and the seed."""
    digest = hashlib.blake2b(f"{seed}:{identity}".encode(), digest_size=8)
    return TEST if int.from_bytes(digest.digest(), "big") < test_fraction * 2**64 else TRAIN


@dataclass(frozen=True, slots=True)
class Skipped:
    """The result for a record that has no task, although no option leaves it out.

    Attributes:
        reason: why the record has no task.
        place: file and record.
    """

    reason: str
    place: str = ""


@dataclass(frozen=True)
class FileSource(Checked):
    """Source of tasks from a file, a folder or the hub. Draws are uniform, with replacement.

    A subclass defines `name` and `read`. Files are read at the first draw, so a config may name files that do not exist
    yet.

    Attributes:
        path: a file, a folder, or `hub:OWNER/NAME[/CONFIG][:SPLIT]`. Environment variables are expanded.
        part: "all", or "train" or "test" of a split by question. Tasks that ask the same question are in the same part.
        test_fraction: share of the questions in the part "test".
        split_seed: random seed of the split.
        limit: maximum number of tasks; the first ones of the part are kept.
        skip_faulty: whether to leave out and count faulty records. Otherwise the first one raises.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    path: str
    part: Annotated[str, OneOf(ALL, TRAIN, TEST)] = ALL
    test_fraction: Share = 0.1
    split_seed: Annotated[int, Between(0, MAX_SEED)] = 0
    limit: Annotated[int, Between(1, MAX_SEED)] | None = None
    skip_faulty: bool = False

    def read(self, record: Record) -> Task | Skipped | None:
        """Return the task of a record, built by `make`.

        Returns:
            The task; `Skipped` if the record has none; `None` if an option leaves it out.

        Raises:
            DataError: the record is faulty. `record.mismatch` and `record.error` build this error.
        """
        raise NotImplementedError(f"{type(self).__name__} has no read(record)")

    def records(self) -> Iterator[Record]:
        return read_records(self.path)

    def identity(self, task: Task) -> str:
        return squeeze(task.prompt)

    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks of the part, in the order of the file. Raises `DataError` for a faulty file."""
        return self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def draw(self, rng: np.random.Generator) -> Task:
        return self._tasks[int(rng.integers(len(self._tasks)))]

    def make(
        self,
        record: Record,
        prompt: str,
        answer: str,
        context: Mapping[str, str] | None = None,
        aliases: tuple[str, ...] = (),
        /,
        **metadata: Scalar,
    ) -> Task:
        """Return a task whose metadata name its origin: the file, its digest, the record's number, and the split.

        Raises:
            DataError: the prompt is empty.
        """
        if not prompt.strip():
            raise DataError(f"{record.place}: the question is empty; expected a text")
        origin: dict[str, Scalar] = {
            "file": record.file if record.file.startswith(HUB) else PurePath(record.file).name,
            "file_digest": self.digest,
            "record": record.number,
        }
        if self.part != ALL:
            origin |= {"part": self.part, "test_fraction": self.test_fraction, "split_seed": self.split_seed}
        return replace(make_task(self.name, prompt, answer, {**origin, **metadata}, context), aliases=aliases)

    @cached_property
    def digest(self) -> str:
        return content_digest(self.path, self.suffixes)

    @property
    def skipped(self) -> Mapping[str, tuple[str, ...]]:
        """The places of the records that have no task, by reason. Records after `limit` are not read."""
        return self._loaded[1]

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[tuple[Task, ...], Mapping[str, tuple[str, ...]]]:
        skipped: dict[str, tuple[str, ...]] = {}

        def tasks_of_part() -> Iterator[Task]:
            for result in self._read_all():
                if isinstance(result, Skipped):
                    skipped[result.reason] = (*skipped.get(result.reason, ()), result.place)
                elif result is not None and self.part in (ALL, self._part(result)):
                    yield result

        # Nothing after the last task within the limit is read, so faults there do not raise.
        tasks = tuple(islice(tasks_of_part(), self.limit))
        for reason, places in skipped.items():
            examples = "; ".join(places[:3]) + ("; ..." if len(places) > 3 else "")
            warnings.warn(
                f"{self.name}: left out {len(places)} records of {self.path}: {reason} ({examples})", stacklevel=3
            )
        if not tasks:
            raise TaskError(
                f"{self.name}: no task in {self.path} with part = {self.part!r} and test_fraction = "
                f"{self.test_fraction}; the file has too few records, or the other options leave all of them out"
            )
        return tasks, skipped

    def _read_all(self) -> Iterator[Task | Skipped | None]:
        """Yield the result of `read` for every record, and check that ids are unique."""
        place_by_id: dict[str, str] = {}

        def read_unique(record: Record) -> Task | Skipped | None:
            task = self.read(record)
            if isinstance(task, Task) and "id" in task.metadata:
                task_id = str(task.metadata["id"])
                if task_id in place_by_id:
                    raise record.error(
                        "id", f"is {shorten_repr(task_id)}, as in {place_by_id[task_id]}; expected a unique id"
                    )
                place_by_id[task_id] = record.place
            return task

        for record in self.records():
            yield self._call_guarded(read_unique, record)

    def _call_guarded(self, read: Callable[[Record], T], record: Record) -> T | Skipped:
        """Return `read(record)`. Every error names the record, and `skip_faulty` turns it into `Skipped`."""
        try:
            result = read(record)
        except DataError as error:
            if not self.skip_faulty:
                raise
            return Skipped("faulty", str(error))
        except SelfcestError:
            raise
        except (ValueError, RecursionError) as error:
            raise DataError(f"{record.place}: cannot be read: {type(error).__name__}: {error}") from error
        return replace(result, place=result.place or record.place) if isinstance(result, Skipped) else result

    def _part(self, task: Task) -> str:
        return identity_part(self.identity(task), self.test_fraction, self.split_seed)
