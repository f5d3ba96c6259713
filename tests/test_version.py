"""The version is that of the installed distribution, or says that there is none."""

import importlib.metadata
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import selfcest_agents
import selfcest_env
import selfcest_training
from selfcest_cli.main import app

ROOT = Path(__file__).parents[1]


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


def test_the_command_says_it() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"selfcest {selfcest_env.__version__}\n")


def test_the_version_is_the_same_wherever_it_stands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    parts = [re.fullmatch(r"(\d+\.\d+\.\d+), (not yet released|\d{4}-\d\d-\d\d)", version) for version in versions]
    assert all(parts), "each section is a version and a day, the first may lack the day"
    released = [part[2] for part in parts[1:] if part]
    assert "not yet released" not in released
    assert parts[0] is not None
    assert project["version"] == cited == parts[0][1]
    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    assert f"git+URL@v{cited}" in page
    assert f"selfcest-{cited}-py3-none-any.whl" in page
    (extras,) = re.findall(r"Extras: (.*?); what", page, re.DOTALL)
    assert set(re.findall(r"`([\w-]+)`", extras)) == set(project["optional-dependencies"])
