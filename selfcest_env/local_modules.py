"""Imports from the user's working directory: only the plug-ins that the user names, and the modules that these import.

The directory is never on `sys.path`. There, every optional module that a library probes for (`brotli`, `dill`) would be
taken from a folder that a stranger may have filled. See SECURITY.md for the limits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VARIABLE = "SELFCEST_LOCAL_MODULES"  # "NAME,NAME:FOLDER", for processes that this one starts


class LocalModules:
    """A finder for `sys.meta_path` of top-level modules in one folder.

    It finds a module that the user has named, and a module whose `import` stands in a module that it has found. To an
    import by a library it finds nothing. Submodules need no finder: Python looks for them in their package.

    Args:
        folder: where the modules are.
        names: modules that may be imported from there by any importer.

    Attributes:
        found: the modules found so far, which other processes may have to import when they unpickle.
    """

    def __init__(self, folder: str, names: Iterable[str] = ()) -> None:
        self.folder = folder
        self.found: set[str] = set()
        self._names = set(names)

    def allow(self, name: str) -> None:
        """From now on, find this top-level module for any importer."""
        self._names.add(name)

    def look_up(self, name: str) -> ModuleSpec | None:
        """The spec of a top-level module of the folder, whether or not it may be imported. Nothing is imported."""
        return PathFinder.find_spec(name, [self.folder])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if path is not None or not (name in self._names or _importer() in self.found):
            return None
        spec = self.look_up(name)
        if spec is not None and name not in self.found:
            self.found.add(name)
            self.publish()
        return spec

    def publish(self) -> None:
        """Tell the processes that this one will start which modules they may import from the folder."""
        os.environ[VARIABLE] = f"{','.join(sorted(self.found))}:{self.folder}"


def search_folder(folder: str, names: Iterable[str] = ()) -> None:
    """Find plug-ins in a folder, after all that is installed, here and in the processes that this one starts.

    Python processes that this one starts do not put their working directory on `sys.path` either. By default, those of
    `multiprocessing` do so until they have read what to do, and it comes before the standard library.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, LocalModules)]
    finder = LocalModules(folder, names)
    sys.meta_path.append(finder)
    finder.found.update(names)
    finder.publish()
    os.environ["PYTHONSAFEPATH"] = "1"


def local_modules() -> LocalModules | None:
    """The finder of this process, if a folder is searched for plug-ins."""
    return next((finder for finder in sys.meta_path if isinstance(finder, LocalModules)), None)


def child_environment() -> dict[str, str]:
    """The environment variables by which a process on another machine searches the same folder."""
    return {name: os.environ[name] for name in (VARIABLE, "PYTHONSAFEPATH") if local_modules() and name in os.environ}


def _importer() -> str:
    """The top-level name of the module whose code is importing: that of the first frame outside of `importlib`."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return name
        frame = frame.f_back
    return ""


if VARIABLE in os.environ:  # a process that one with a searched folder has started
    _names, _, _folder = os.environ[VARIABLE].partition(":")
    search_folder(_folder, filter(None, _names.split(",")))
