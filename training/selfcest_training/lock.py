"""Locks the folder of a run or a study, so that one process at a time writes into it."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from selfcest_env.errors import ConfigError
from selfcest_training.files import open_for_append, read_regular, refuse_linked_folders

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder if it does not exist, and lock it until the block ends.

    The operating system holds the lock on an open file, so the lock ends with its process. The file stays, and names
    the process. On a file system without locks, for example some network file systems, there is a warning instead.

    Raises:
        ConfigError: another process has locked the folder, the folder cannot be written, or a link in it leads out
            of it.
    """
    with _open_lock_file(folder) as file:
        # A forked child, for example vLLM's engine, would keep the lock of a parent that has ended.
        os.register_at_fork(after_in_child=file.close)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "another process"
            raise ConfigError(
                f"{folder} is in use by {owner}; wait until it has ended or end it, or set name= to use another folder"
            ) from error
        except OSError as error:
            warnings.warn(f"{folder} is not locked ({error.strerror}); start nothing else there", stacklevel=3)
        file.truncate(0)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def find_lock_owner(folder: Path) -> str | None:
    """Find the process that the lock file names, without taking the lock; `None` if there is none or it has ended.

    A process on another machine counts as running, because its end cannot be seen from here.
    """
    try:
        owner = read_regular(folder / LOCK).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    match = re.fullmatch(r"process (\d{1,9}) on (\S*) since .*", owner)
    if match is None:
        return None
    process_id, host = match.groups()
    if host == socket.gethostname():
        try:
            os.kill(int(process_id), 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            # The process exists and belongs to another user.
            pass
    return owner


def _open_lock_file(folder: Path) -> BinaryIO:
    """Open the lock file. Raises `ConfigError` if the folder cannot be written, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        refuse_linked_folders(folder)
        return open_for_append(folder / LOCK)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be written ({error.strerror or error}); set output= to a folder you own"
        ) from error
