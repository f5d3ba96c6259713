"""`make release`: what it writes about the files that it builds, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]

import release  # noqa: E402


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit with a tag, in which `release` works."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a.py").write_text("a = 1\n", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "a")
    git(tmp_path, "tag", "v1")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "version", lambda name: "1.0")
    return tmp_path


def test_the_statement_names_commit_tag_tree_tools_and_the_digest_of_each_file(checkout: Path) -> None:
    wheel = checkout / "a.whl"
    wheel.write_bytes(b"wheel")
    commit = git(checkout, "rev-parse", "HEAD")
    statement = release.provenance([wheel], commit, [], release.now())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": "a.whl", "digest": {"sha256": sha256(b"wheel").hexdigest()}}]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"commit": commit, "tags": ["v1"], "tree": "clean"}
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    assert {"uri": "pkg:pypi/hatchling@1.0"} in definition["resolvedDependencies"]
    assert json.loads(json.dumps(statement)) == statement
    dirty = release.provenance([wheel], commit, [" M a.py"], release.now())["predicate"]["buildDefinition"]
    assert dirty["externalParameters"]["tree"] == "dirty"
    assert dirty["internalParameters"]["changed"] == [" M a.py"]


@pytest.mark.parametrize("change", ["edited", "staged", "removed", "untracked", "in a folder"])
def test_a_tree_that_differs_from_its_commit_is_refused(
    change: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = checkout / {"untracked": "b.py", "in a folder": "folder/b.py"}.get(change, "a.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text("a = 2\n", encoding="utf-8")
    if change == "staged":
        git(checkout, "add", ".")
    if change == "removed":
        file.unlink()
    out = tmp_path_factory.mktemp("dist")
    monkeypatch.setattr(sys, "argv", ["release.py", str(out)])
    with pytest.raises(SystemExit, match=r"1 files differ from commit [0-9a-f]{12} \(.*\); commit or remove them"):
        release.main()
    assert not list(out.iterdir())


def test_a_folder_with_files_is_refused_and_left_alone(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release.py", str(checkout)])
    with pytest.raises(SystemExit, match="is not empty; remove it first"):
        release.main()
    assert (checkout / "a.py").is_file()


def test_every_lock_is_read_whole() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if re.match(r"[A-Za-z]", line)]
        assert [f"{name}=={version}" for name, version in release.pins(lock)] == [
            re.split(r"[\s;\\]", line)[0] for line in lines
        ]


def test_the_workflow_runs_the_fast_set_on_every_python_that_the_locks_are_for(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["fast"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[-1] == "make test"
    assert 'run_for "$budget" make test' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    *prepare, run = commands[0].splitlines()
    assert run == 'bash -ex "$RUNNER_TEMP/torch.sh"'
    environment = {**os.environ, "RUNNER_TEMP": str(tmp_path)}
    subprocess.run(["bash", "-ec", "\n".join(prepare)], cwd=ROOT, env=environment, check=True)
    script = (tmp_path / "torch.sh").read_text(encoding="utf-8").splitlines()
    (pin,) = release.pins(ROOT / "requirements" / "torch.txt")
    assert script[0] == "python3 -m venv .venv"
    assert f"torch=={pin[1]} --index-url" in script[1]
    assert len(script) == 2


def test_the_workflow_stops_where_the_commands_for_torch_are_missing(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    commands = next(step["run"] for step in workflow["jobs"]["fast"]["steps"] if "run" in step)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "torch.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    environment = {**os.environ, "RUNNER_TEMP": str(tmp_path)}
    done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1


def test_the_workflow_pins_every_action_by_its_commit_and_can_write_nothing() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert len(uses) == 2
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[0-9.]+", action) for action in uses)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_clean_removes_every_environment_that_make_sets_up() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    environments = {*re.findall(r"-m venv (\S+)", makefile)}
    (removed,) = re.findall(r"^\trm -rf (\$\(VENV\) .*)$", makefile, re.MULTILINE)
    assert environments <= {*removed.split()}


@pytest.mark.slow
def test_a_release_of_a_commit_is_the_same_twice_and_its_papers_are_of_its_files(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    git(tmp_path, "clone", "--quiet", str(ROOT), "clone")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    python = tmp_path / "tools" / "bin" / "python"
    lock = ROOT / "requirements" / "tools.txt"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", lock]
    subprocess.run(install, check=True)
    for folder in ("one", "two"):
        command = [python, tmp_path / "clone" / "requirements" / "release.py", tmp_path / folder]
        subprocess.run(command, check=True)
    statement = json.loads(next((tmp_path / "one").glob("*.provenance.json")).read_text(encoding="utf-8"))
    for subject in statement["subject"]:
        contents = (tmp_path / "one" / subject["name"]).read_bytes()
        assert subject["digest"]["sha256"] == sha256(contents).hexdigest()
        assert contents == (tmp_path / "two" / subject["name"]).read_bytes(), subject["name"]
    suffixes = {Path(subject["name"]).suffix for subject in statement["subject"]}
    assert suffixes == {".gz", ".json", ".whl"}
    bom = json.loads(next((tmp_path / "one").glob("*.cdx.json")).read_text(encoding="utf-8"))
    listed = {(component["name"], component["version"]) for component in bom["components"]}
    locks = (tmp_path / "clone" / "requirements").glob("*.txt")
    assert listed == {pin for path in locks for pin in release.pins(path)}
    assert bom["specVersion"] == "1.6"
    assert bom["metadata"]["component"]["name"] == "selfcest"
