"""One process at a time writes into the folder of a run or a study."""

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
def locked(folder: Path) -> Iterator[None]:
    """Make the folder if it is not there, and keep every other process out of it until the block ends.

    The lock is the system's, on a file that is held open: it ends with its owner, whatever ended that. The file stays,
    and says who the owner is. A file system without locks, as some network ones, gives a warning instead.

    Raises:
        ConfigError: another process holds the folder; the message names it. Or the folder cannot be written, or a link
            in it leads out of it.
    """
    with _lock_file(folder) as file:
        os.register_at_fork(after_in_child=file.close)  # a child, as vLLM's engine, would keep a dead owner's lock
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


def owner_of(folder: Path) -> str | None:
    """The process that the lock file names, without a try at the lock; `None`: there is none, or it is gone.

    Of a process on another machine nobody knows here whether it is gone.
    """
    try:
        owner = read_regular(folder / LOCK).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    named = re.fullmatch(r"process (\d{1,9}) on (\S*) since .*", owner)
    if named is None:
        return None
    if named[2] == socket.gethostname():
        try:
            os.kill(int(named[1]), 0)
        except ProcessLookupError:
            return None
        except PermissionError:  # it is somebody else's
            pass
    return owner


def _lock_file(folder: Path) -> BinaryIO:
    """Open. What cannot be written raises `ConfigError` now, rather than after the first checkpoint."""
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
