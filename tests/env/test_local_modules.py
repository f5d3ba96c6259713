"""A plug-in of the working directory and its siblings are imported, and no library takes a module from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
import importlib
import importlib.util

def probe(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True

def probe_inside(name):
    try:
        exec(f"import {name}", globals())
    except ImportError:
        return False
    return True

def is_there(name):
    return importlib.util.find_spec(name) is not None
"""
PLUG_IN = """
import library
from helper import Helper
from package.inner import Inner

class Mine:
    def __init__(self):
        self.helper = Helper()
        self.inner = Inner()

    def late(self):
        import late
        import importlib
        importlib.import_module("later")
        return late.VALUE
"""
MODULES = {
    "mine.py": PLUG_IN,
    "helper.py": "import second\nimport library\nassert not library.probe('dill')\nclass Helper: pass\n",
    "second.py": "class Second: pass\n",
    "late.py": "VALUE = 7\n",
    "later.py": "",
    "package/__init__.py": "",
    "package/inner.py": "import of_package\nfrom . import beside\nclass Inner: pass\n",
    "package/beside.py": "",
    "of_package.py": "",
}
STRANGERS = [
    "brotli",
    "h2",
    "dill",
    "random",
    "pickle",
    "sitecustomize",
    "usercustomize",
    "signal",
    "socket",
    "zstandard",
]
SCRIPT = """
import multiprocessing
import os
import sys

import library
from selfcest_env import local_modules
from selfcest_env.plugin import Registry

PROBED = ("brotli", "h2", "dill", "zstandard", "nothing_of_this_name")

def probe():
    for name in PROBED:
        assert not library.probe(name), name
        assert not library.probe_inside(name), name
        assert not library.is_there(name), name

def in_child(plug_in):
    assert type(plug_in).__module__ == "mine"
    assert plug_in.late() == 7
    probe()
    return plug_in.helper

if __name__ == "__main__":
    local_modules.search_folder(os.getcwd())
    probe()
    registry = Registry(object, "thing", "nothing", {})
    cls = registry.load("mine:Mine")
    probe()
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        helper = pool.apply(in_child, (cls(),))
        second = sys.modules["second"].Second()
        assert type(pool.apply(type, (second,))).__name__ == "type"
    assert type(helper).__module__ == "helper"
    assert os.getcwd() not in sys.path and "" not in sys.path
    print("played")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory of a plug-in, and of modules that libraries probe for, each of which leaves a trace."""
    working = tmp_path / "working"
    for name, text in MODULES.items():
        (working / name).parent.mkdir(parents=True, exist_ok=True)
        (working / name).write_text(text, encoding="utf-8")
    for name in STRANGERS:
        (working / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n", encoding="utf-8"
        )
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "library.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "installed" / "script.py").write_text(SCRIPT, encoding="utf-8")
    return working


def test_a_plug_in_of_the_working_directory_imports_its_siblings_and_libraries_find_nothing_there(folder: Path) -> None:
    script = folder.parent / "installed" / "script.py"
    done = subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "played\n", done.stderr
    assert not (folder.parent / "ran").exists(), (folder.parent / "ran").read_text()


def test_a_package_of_the_working_directory_declares_no_plug_in(folder: Path) -> None:
    (folder / "evil-1.0.dist-info").mkdir()
    (folder / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (folder / "evil-1.0.dist-info" / "entry_points.txt").write_text("[group]\nnice = dill:Class\n")
    code = """
import os, sys
from selfcest_env.local_modules import search_folder
from selfcest_env.plugin import Registry
search_folder(os.getcwd())
print(dict(Registry(object, "thing", "group", {})))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "{}\n", done.stderr
