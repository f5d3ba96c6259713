import sys
from pathlib import Path

import pytest
import torch

from selfcest_env import local_modules

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))  # for its models
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_searched_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command changes in its process, which it has to itself outside of tests, ends with the test."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for variable in (local_modules.VARIABLE, "PYTHONSAFEPATH"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
