"""Atomic writes, append-only logs, and digests of files."""

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

# Prefixes of hidden paths: an unfinished write, and a folder that is being deleted.
_PARTIAL = ".partial."
_REMOVED = ".removed."
_JOB_FOLDER = re.compile(r"seed[0-9]+")


@contextmanager
def report_read_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of a block that reads a user's path into a `ConfigError` that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path} cannot be read ({error.strerror or error}); name another file "
            "or fix its permissions"
        ) from error


def open_for_append(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a file for reading and appending; create it if it does not exist. `buffering` is that of `open`.

    A link is never followed: another user may have placed it, and it may point to any file of this one. The open file
    is checked and not its path, which another process may replace meanwhile.

    Raises:
        ConfigError: the path is a symbolic link, a file that has another name too, or no file.
    """
    # Without O_NONBLOCK, opening a pipe would hang.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _make_link_error(path, "a symbolic link") from error
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        os.close(handle)
        raise _make_link_error(path, "a hard link" if stat.S_ISREG(state.st_mode) else "a pipe or a device")
    return os.fdopen(handle, "a+b", buffering)


def _make_link_error(path: Path, kind: str) -> ConfigError:
    return ConfigError(f"{path} is {kind}; expected a regular file or folder: replace it with a copy of its target")


def create_text_file(path: Path) -> TextIO:
    """Create a file, and delete an old file of its name. Raises `FileExistsError` if a link appears meanwhile."""
    _delete(path)
    return path.open("x", encoding="utf-8")


def read_regular(path: Path, last: int | None = None) -> bytes:
    """Read a file, or its last bytes, without waiting for the writer of a pipe that lies in its place.

    Args:
        path: the file. Its folder may belong to another user.
        last: number of bytes to read at the end of the file; `None` reads all.

    Raises:
        OSError: the file cannot be read, or is no regular file.
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
        raise _make_link_error(path, "a symbolic link")


def refuse_linked_folders(folder: Path) -> None:
    """Raise `ConfigError` if a folder inside this one is a symbolic link. The folder itself may be one.

    W&B's folder in a job is not searched, because W&B links its latest run there.
    """
    for parent, names, _ in os.walk(folder):
        for name in names:
            refuse_linked_folder(Path(parent, name))
        # Elsewhere a folder with the name "wandb" may be that of a variant.
        if _JOB_FOLDER.fullmatch(Path(parent).name):
            names[:] = [name for name in names if name != "wandb"]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a hidden path to write to. When the block ends, the hidden path replaces the file or folder `path`.

    A folder replaces a file or folder, and a file only a file.

    The rename happens after everything has been flushed to the disk. A block that raises leaves `path` as it was. A
    killed process leaves the hidden path behind; `remove_partials` removes it.

    Raises:
        OSError: the path cannot be written. An error of a Rust library that quotes an OS error becomes one too.
    """
    prefix = f"{_PARTIAL}{path.name}~"
    for earlier in path.parent.glob(f"{glob.escape(prefix)}*"):
        _delete(earlier)
    # The name is unpredictable, so no other user can place a link there that the writing library would follow.
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    partial = folder / path.name
    try:
        yield partial
        for file in (*partial.rglob("*"), partial):
            _sync(file)
        if path.is_dir():
            if not partial.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            # A rename cannot replace a folder.
            remove_folder(path, replacement=partial)
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
    """Return the error number in a message of a Rust library, as "(os error 28)"; `None` if there is none."""
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else None


def write_text(path: Path, text: str) -> None:
    """Write a text file with `atomic_write`."""
    with atomic_write(path) as partial, create_text_file(partial) as file:
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """Replace a text file in one step, so that no reader sees half of it. It is not flushed to the disk."""
    partial = path.with_name(f"{_PARTIAL}{path.name}")
    with create_text_file(partial) as file:
        file.write(text)
    partial.replace(path)


def remove_folder(folder: Path, replacement: Path | None = None) -> None:
    """Delete a folder, or replace it by another one. No half-deleted folder has its name, as it is renamed first."""
    hidden = folder.with_name(f"{_REMOVED}{folder.name}")
    _delete(hidden)
    folder.rename(hidden)
    if replacement is not None:
        replacement.rename(folder)
    _delete(hidden)


def remove_partials(folder: Path) -> None:
    """Remove the hidden paths that a killed `atomic_write` or `remove_folder` has left in a folder."""
    for prefix in (_PARTIAL, _REMOVED):
        for path in folder.glob(f"{prefix}*"):
            _delete(path)


def check_kind(path: Path, *, folder: bool) -> None:
    """Refuse a file in the place of a folder, or the reverse, before a run that could not be resumed.

    Raises:
        ConfigError: the path exists and is of another kind.
    """
    if not os.path.lexists(path) or (path.is_dir() if folder else path.is_file()):
        return
    kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "neither a file nor a folder"
    raise ConfigError(f"{path} is {kind}; expected {'a folder' if folder else 'a file'}: move it away, then resume")


def check_output_file(option: str, out: Path, *, makes_folders: bool = False) -> None:
    """Raise `ConfigError` if no file can be written to this path.

    Args:
        option: option of the command line that names the path, for the message.
        out: the path.
        makes_folders: whether the folder of the file is made if it is missing.
    """
    if out.is_dir():
        raise ConfigError(f"{option} {out} is a folder; expected the path of a file")
    _check_writable(option, out, out.absolute().parent, makes_folders)


def check_new_file(option: str, out: Path) -> None:
    """Raise `ConfigError` if the path exists, or no file can be written to it."""
    if out.exists():
        raise ConfigError(f"{option} {out} exists; expected a new file: name another one, or remove this one")
    check_output_file(option, out)


def check_output_folder(option: str, out: Path) -> None:
    """Raise `ConfigError` if the path is no folder in which files can be written, and none can be made there."""
    _check_writable(option, out, out.absolute(), True)


def _check_writable(option: str, out: Path, folder: Path, may_be_missing: bool) -> None:
    while may_be_missing and not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"{option} {out} cannot be written: {folder} is not a folder; name another path")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{option} {out} cannot be written: no permission to write in {folder}; name another folder")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_files(folder: Path, *, hidden: bool = True) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by relative path. `hidden` includes names with a dot."""
    digest_by_path: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_file() and (hidden or not is_hidden):
            digest_by_path[str(relative)] = hash_file(path)
    return digest_by_path


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class FileOffset:
    """A position in an append-only file: its size in bytes so far, and their SHA-256."""

    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()


def measure_offset(path: Path) -> FileOffset:
    """Return the offset at the end of a finished file."""
    return FileOffset(path.stat().st_size, hash_file(path))


class AppendLog:
    """A file to which text is appended.

    Args:
        path: path of the file, which is created with the first text.
        offset: position from which to resume. Everything after it is removed.

    Raises:
        RecordError: the beginning of the file does not match the offset.
    """

    def __init__(self, path: Path, offset: FileOffset) -> None:
        self._path = path
        self._size = offset.size
        if os.path.lexists(path):
            with open_for_append(path) as file:
                self._hash = _hash_beginning(path, offset)
                if file.seek(0, os.SEEK_END) > offset.size:
                    file.truncate(offset.size)
        else:
            self._hash = _hash_beginning(path, offset)
        self._file: BinaryIO | None = None

    def append(self, text: str) -> None:
        """Append a text. Raises `OSError` that names the file."""
        data = text.encode()
        try:
            if self._file is None:
                self._file = open_for_append(self._path, buffering=0)
                _sync(self._path.parent)
            # On a full disk the write may succeed for a part of the data.
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._hash.update(data)
        self._size += len(data)

    def offset(self) -> FileOffset:
        """Flush the file to the disk and return its offset."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return FileOffset(self._size, self._hash.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def check_offset(path: Path, offset: FileOffset) -> None:
    """Raise `RecordError` if the beginning of a file does not match an offset."""
    _hash_beginning(path, offset)


def _hash_beginning(path: Path, offset: FileOffset) -> hashlib._Hash:
    """Hash the file up to an offset. Raises `RecordError` if the file is shorter or has another content there."""
    digest = hashlib.sha256()
    remaining = offset.size
    if path.exists():
        with path.open("rb") as file:
            while remaining:
                data = file.read(min(remaining, 1 << 20))
                if not data:
                    break
                digest.update(data)
                remaining -= len(data)
    if remaining:
        raise RecordError(f"{path} is {'cut' if path.exists() else 'gone'}")
    if digest.hexdigest() != offset.sha256:
        raise RecordError(f"{path} is damaged")
    return digest


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
