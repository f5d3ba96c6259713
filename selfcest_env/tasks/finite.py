"""Sources with finitely many tasks, read from files: what they share, and how they are split."""

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
    """A source whose tasks can be counted, for evaluation on a whole set and for leak checks."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def identity(self, task: Task) -> str: ...

    def tasks(self) -> tuple[Task, ...]: ...


def squeeze(text: str) -> str:
    """Letters and digits alone, in lower case: what is left of a question when spelling does not count."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def identity_part(identity: str, test_fraction: float, seed: int = 0) -> str:
    """The part a problem belongs to: a function of its identity and the seed alone."""
    digest = hashlib.blake2b(f"{seed}:{identity}".encode(), digest_size=8)
    return TEST if int.from_bytes(digest.digest(), "big") < test_fraction * 2**64 else TRAIN


@dataclass(frozen=True, slots=True)
class Skipped:
    """Instead of a record's task: why there is none, though no option leaves it out, and where (the record itself)."""

    why: str
    where: str = ""


@dataclass(frozen=True)
class FileSource(Checked):
    """Tasks read from a file, a folder or the hub; draws are uniform, with replacement.

    A subclass gives `name` and `read`. Files are read at the first draw, so a config may name files that are not there
    yet.

    Attributes:
        path: a file, a folder, or `hub:OWNER/NAME[/CONFIG][:SPLIT]`; environment variables are expanded.
        part: "all", or "train" or "test" of a split by question: tasks that ask the same are in the same part.
        test_fraction: share of the questions that are in the part "test".
        split_seed: another seed is another split.
        limit: keep only so many tasks, the first of the part.
        skip_faulty: leave out and count records that are not what they should be, rather than stop at the first.
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
        """The task of a record, made by `make`, or why there is none; `None` if an option leaves it out.

        What is wrong with a record is a `DataError` that names it (`record.mismatch`, `record.error`).
        """
        raise NotImplementedError(f"{type(self).__name__} has no read(record)")

    def records(self) -> Iterator[Record]:
        return read_records(self.path)

    def identity(self, task: Task) -> str:
        return squeeze(task.prompt)

    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the part, in the order of the file. Raises `DataError` if the file is not what it should be."""
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
        """A task that says where it comes from: file, its digest, the record's number, and the split."""
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
        """Why records were left out for what they are, and where they stand; those after `limit` were not read."""
        return self._loaded[1]

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[tuple[Task, ...], Mapping[str, tuple[str, ...]]]:
        skipped: dict[str, tuple[str, ...]] = {}

        def read() -> Iterator[Task]:
            for found in self._found():
                if isinstance(found, Skipped):
                    skipped[found.why] = (*skipped.get(found.why, ()), found.where)
                elif found is not None and self.part in (ALL, self._part(found)):
                    yield found

        tasks = tuple(islice(read(), self.limit))
        for why, places in skipped.items():
            shown = "; ".join(places[:3]) + ("; ..." if len(places) > 3 else "")
            warnings.warn(f"{self.name}: left out {len(places)} records of {self.path}: {why} ({shown})", stacklevel=3)
        if not tasks:
            raise TaskError(
                f"{self.name}: no task in {self.path} with part = {self.part!r} and test_fraction = "
                f"{self.test_fraction}; the file has too few records, or the other options leave all of them out"
            )
        return tasks, skipped

    def _found(self) -> Iterator[Task | Skipped | None]:
        """What becomes of the records: of each its task, if its id is new."""
        ids: dict[str, str] = {}

        def read(record: Record) -> Task | Skipped | None:
            found = self.read(record)
            if isinstance(found, Task) and "id" in found.metadata:
                name = str(found.metadata["id"])
                if name in ids:
                    raise record.error("id", f"is {shorten_repr(name)}, as in {ids[name]}; expected one of its own")
                ids[name] = record.place
            return found

        for record in self.records():
            yield self._guarded(record, read)

    def _guarded(self, record: Record, read: Callable[[Record], T]) -> T | Skipped:
        """What `read` makes of a record; what is wrong with it names its place, and is skipped where that is asked."""
        try:
            found = read(record)
        except DataError as error:
            if not self.skip_faulty:
                raise
            return Skipped("faulty", str(error))
        except SelfcestError:
            raise
        except (ValueError, RecursionError) as error:
            raise DataError(f"{record.place}: cannot be read: {type(error).__name__}: {error}") from error
        return replace(found, where=found.where or record.place) if isinstance(found, Skipped) else found

    def _part(self, task: Task) -> str:
        return identity_part(self.identity(task), self.test_fraction, self.split_seed)
