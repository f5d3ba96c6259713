"""Imports from the user's working directory: only the plug-ins that the user names, and the modules that these import.

The directory is never on `sys.path`, because libraries probe for optional modules (`brotli`, `dill`), and Python would
then import them from a folder with files of strangers. See SECURITY.md for the limits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VARIABLE = "SELFCEST_LOCAL_MODULES"  # "NAME,NAME:FOLDER", for child processes


class LocalModules:
    """A finder for `sys.meta_path` of top-level modules in one folder.

    It finds modules that the user has named, and modules that a found module imports. It finds nothing for imports by
    libraries. Submodules need no finder, because Python searches their package.

    Args:
        folder: the folder of the modules.
        names: modules that any module may import from the folder.

    Attributes:
        found: the modules found so far, which child processes may need for unpickling.
    """

    def __init__(self, folder: str, names: Iterable[str] = ()) -> None:
        self.folder = folder
        self.found: set[str] = set()
        self._names = set(names)

    def allow(self, name: str) -> None:
        """Let any module import this top-level module from the folder."""
        self._names.add(name)

    def look_up(self, name: str) -> ModuleSpec | None:
        """Return the spec of a top-level module of the folder, allowed or not. Nothing is imported."""
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
        """Pass the found modules on to child processes."""
        os.environ[VARIABLE] = f"{','.join(sorted(self.found))}:{self.folder}"


def search_folder(folder: str, names: Iterable[str] = ()) -> None:
    """Search a folder for plug-ins, after all installed modules, in this process and in its children.

    `PYTHONSAFEPATH` keeps child processes from putting their working directory on `sys.path`. Those of
    `multiprocessing` would put it in front of the standard library until they have unpickled their work.

    Args:
        folder: path of the folder.
        names: modules that any module may import from the folder, as in the parent process.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, LocalModules)]
    finder = LocalModules(folder, names)
    sys.meta_path.append(finder)
    finder.found.update(names)
    finder.publish()
    os.environ["PYTHONSAFEPATH"] = "1"


def local_modules() -> LocalModules | None:
    """Return the finder of this process, or `None` if no folder is searched."""
    return next((finder for finder in sys.meta_path if isinstance(finder, LocalModules)), None)


def child_environment() -> dict[str, str]:
    """Return the environment variables that make a process on another machine search the same folder."""
    return {name: os.environ[name] for name in (VARIABLE, "PYTHONSAFEPATH") if local_modules() and name in os.environ}


def _importer() -> str:
    """Return the top-level name of the importing module, which is that of the first frame outside of `importlib`."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
            return name
        frame = frame.f_back
    return ""


if VARIABLE in os.environ:  # a child of a process that searches a folder
    _names, _, _folder = os.environ[VARIABLE].partition(":")
    search_folder(_folder, filter(None, _names.split(",")))
