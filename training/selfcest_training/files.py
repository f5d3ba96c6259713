"""Files that are there whole or not at all, files that only grow, and digests of both."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from selfcest_env.errors import ConfigError, RecordError

_PARTIAL, _REMOVED = ".partial.", ".removed."
_JOB_FOLDER = re.compile(r"seed[0-9]+")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """For a block that reads what was typed: an `OSError` of it becomes a `ConfigError` that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be read ({error.strerror or error}); name another, or mend its rights"
        ) from error


def open_for_append(path: Path, buffering: int = -1) -> BinaryIO:
    """A file to read and to write at its end, made if it is not there; `buffering` as in `open`.

    It is never opened through a link, which may lead out of a stranger's folder. The open file is looked at, and not
    its name, which may lead elsewhere a moment later.

    Raises:
        ConfigError: the path is a symbolic link, a file that has another name too, or no file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # non-blocking: a pipe would hang
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _not_own(path, "a symbolic link") from error
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        os.close(handle)
        raise _not_own(path, "a hard link" if stat.S_ISREG(state.st_mode) else "a pipe or a device")
    return os.fdopen(handle, "a+b", buffering)


def _not_own(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path} is {what}, and nothing is written through one; remove it, or copy what it leads to to this place"
    )


def create(path: Path) -> TextIO:
    """A new file in the place of whatever has its name. Raises `FileExistsError` if a link is put there meanwhile."""
    _delete(path)
    return path.open("x", encoding="utf-8")


def read_regular(path: Path, last: int | None = None) -> bytes:
    """Read a file, or its last bytes, without waiting for the writer of a pipe that lies in its place.

    Args:
        path: file of a folder that may be a stranger's.
        last: number of bytes to read at its end; `None`: all.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if last is not None:
            file.seek(max(0, state.st_size - last))
        return file.read()


def refuse_linked_folder(path: Path) -> None:
    """Raise `ConfigError` if a folder is a symbolic link: files would be written through it."""
    if path.is_symlink():
        raise _not_own(path, "a symbolic link")


def refuse_linked_folders(folder: Path) -> None:
    """`refuse_linked_folder` for all folders inside of this one, which may itself be a link of its owner's.

    What is inside of W&B's own folder of a job is left alone, since W&B links its latest run.
    """
    for place, names, _ in os.walk(folder):
        for name in names:
            refuse_linked_folder(Path(place, name))
        if _JOB_FOLDER.fullmatch(Path(place).name):  # elsewhere a folder of this name may be a variant's
            names[:] = [name for name in names if name != "wandb"]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a hidden path to write to. When the block ends, the hidden path replaces the file or folder `path`.

    The rename happens after everything has been flushed to the disk. A block that raises leaves `path` as it was. A
    killed process leaves the hidden path behind; `remove_partials` removes it.

    Raises:
        OSError: the path cannot be written. An error of a Rust library that quotes an OS error becomes one too.
    """
    prefix = f"{_PARTIAL}{path.name}~"
    for earlier in path.parent.glob(f"{glob.escape(prefix)}*"):
        _delete(earlier)
    # A new folder, whose name nobody knows before: no link can wait there for the libraries that write the file.
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    partial = folder / path.name
    try:
        yield partial
        for file in (*partial.rglob("*"), partial):
            _sync(file)
        if path.is_dir():  # which no rename replaces
            remove(path, but=partial)
        else:
            partial.replace(path)
        _sync(path.parent)
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else _os_error(error)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error
    finally:
        _delete(folder)


def _os_error(error: Exception) -> int | None:
    """The number in what a library of Rust says of an error of the system."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def write_text(path: Path, text: str) -> None:
    """Write a text file with `atomic_write`."""
    with atomic_write(path) as partial, create(partial) as file:
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """A file of this text for whoever reads it now: never half of it, and on the disk when the system likes."""
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    with create(partial) as file:
        file.write(text)
    partial.replace(path)


def remove(folder: Path, but: Path | None = None) -> None:
    """Delete a folder, under another name, so that a half-deleted one is never taken for a whole one.

    With `but` that folder takes its place.
    """
    hidden = folder.with_name(f"{_REMOVED}{folder.name}")
    _delete(hidden)
    folder.rename(hidden)
    if but is not None:
        but.rename(folder)
    _delete(hidden)


def remove_partials(folder: Path) -> None:
    """Remove the hidden paths that a killed `atomic_write` or `remove` has left in a folder."""
    for prefix in (_PARTIAL, _REMOVED):
        for path in folder.glob(f"{prefix}*"):
            _delete(path)


def check_kind(path: Path, *, folder: bool) -> None:
    """Refuse a file where a folder must lie, or the reverse: a run that found it later could never be resumed.

    Raises:
        ConfigError: something else lies there. Nothing there is fine.
    """
    if not os.path.lexists(path) or (path.is_dir() if folder else path.is_file()):
        return
    kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "neither a file nor a folder"
    raise ConfigError(f"{path} is {kind}; expected {'a folder' if folder else 'a file'}: move it away, then resume")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def digests(folder: Path, *, hidden: bool = True) -> dict[str, str]:
    """SHA-256 of every file of a folder, by its path in there; without `hidden` of none below a name with a dot."""
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        str(name): _digest(path)
        for name, path in files.items()
        if hidden or not any(part.startswith(".") for part in name.parts)
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class FileOffset:
    """How far a file that only grows had come: its bytes, and their SHA-256."""

    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def measure_offset(path: Path) -> FileOffset:
    """Of a file that is done."""
    return FileOffset(path.stat().st_size, _digest(path))


class AppendLog:
    """A file to which text is appended.

    Args:
        path: of the file; made with the first text.
        offset: where to go on. What stands after it is removed.

    Raises:
        RecordError: the file does not begin with what the offset says.
    """

    def __init__(self, path: Path, offset: FileOffset) -> None:
        self._path = path
        self._size = offset.size
        if os.path.lexists(path):
            with open_for_append(path) as file:
                self._hash = _hash_of(path, offset)
                if file.seek(0, os.SEEK_END) > offset.size:
                    file.truncate(offset.size)
        else:
            self._hash = _hash_of(path, offset)
        self._file: BinaryIO | None = None

    def append(self, text: str) -> None:
        """Raises `OSError` that names the file."""
        data = text.encode()
        try:
            if self._file is None:
                self._file = open_for_append(self._path, buffering=0)
                _sync(self._path.parent)
            if self._file.write(data) != len(data):  # what fits, fits; the rest meets the error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._hash.update(data)
        self._size += len(data)

    def offset(self) -> FileOffset:
        """What has been appended so far, by now on the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return FileOffset(self._size, self._hash.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def check_offset(path: Path, offset: FileOffset) -> None:
    """Raise `RecordError` if a file does not begin with what an offset says."""
    _hash_of(path, offset)


def _hash_of(path: Path, offset: FileOffset) -> hashlib._Hash:
    found, left = hashlib.sha256(), offset.size
    if path.exists():
        with path.open("rb") as file:
            while left and (data := file.read(min(left, 1 << 20))):
                found.update(data)
                left -= len(data)
    if left:
        raise RecordError(f"{path} is {'cut' if path.exists() else 'gone'}")
    if found.hexdigest() != offset.sha256:
        raise RecordError(f"{path} is damaged")
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
