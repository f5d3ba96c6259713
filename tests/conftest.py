from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from selfcest_env import local_modules

# Once torch and the tests are loaded, a full search for cycles takes half a second and finds nothing that can be freed.
# So there is none while they are loaded, and later ones are fewer and leave them out.
gc.disable()
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch  # here, since the tests of the game run without it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_searched_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test what a command changes in its process, which outside of tests ends with the command."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for variable in (local_modules.VARIABLE, "PYTHONSAFEPATH"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
