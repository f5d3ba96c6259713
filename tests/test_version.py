"""The version is that of the installed distribution, or says that there is none."""

import importlib.metadata
import runpy

import pytest

import selfcest_agents
import selfcest_env
import selfcest_training


def version_if(found: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the package says where the metadata have this version, or none."""

    def version(name: str) -> object:
        assert name == "selfcest"
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    said: str = runpy.run_path(str(selfcest_env.__file__))["__version__"]
    return said


def test_the_version_is_that_of_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selfcest_env.__version__ == selfcest_agents.__version__ == selfcest_training.__version__
    assert version_if("7.8.9", monkeypatch) == "7.8.9"
    assert version_if(None, monkeypatch) == "0+unknown"
