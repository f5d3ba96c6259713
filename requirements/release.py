"""Builds sdist and wheel into a folder, with an SBOM of the locks and a statement of how the files were built.

    .venv-tools/bin/python requirements/release.py dist [--allow-dirty]

The SBOM is CycloneDX JSON: every package that a lock pins, and which locks pin it. The other file is an in-toto
statement with SLSA provenance: commit, whether the tree differed from it, Python, build tools, SHA-256 of each file.
Nothing is signed. Two builds of one commit by the same tools give the same sdist, wheel and SBOM.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[1]
BUILD_TOOLS = ("hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers", "cyclonedx-python-lib")
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"


def git(*arguments: str) -> str:
    """What git prints about this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip("\n")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def pins(lock: Path) -> list[tuple[str, str]]:
    """Name and version of every package that a lock pins."""
    return re.findall(r"^([\w.-]+)==([\w.+!]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)


def bill_of_materials(locks: list[Path], name: str, project_version: str, commit: str, when: datetime) -> str:
    """CycloneDX JSON of what the locks pin. Each component names its locks, and each lock has its own SHA-256.

    The hashes of a package's files are not repeated: the locks, which the sdist holds, have one for each file.
    """
    from cyclonedx.model import Property  # of .venv-tools; the rest of this file needs the standard library only
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    locks_by_pin: dict[tuple[str, str], list[str]] = {}
    for lock in locks:
        for pin in pins(lock):
            locks_by_pin.setdefault(pin, []).append(lock.name)
    components = []
    for (package, package_version), lock_names in sorted(locks_by_pin.items()):
        component = Component(
            name=package,
            version=package_version,
            bom_ref=f"{package}=={package_version}",
            purl=PackageURL("pypi", None, package.lower().replace("_", "-"), package_version),
            properties=[Property(name="selfcest:lock", value=lock_name) for lock_name in lock_names],
        )
        components.append(component)
    project = Component(
        name=name,
        version=project_version,
        type=ComponentType.APPLICATION,
        bom_ref=name,
        purl=PackageURL("pypi", None, name, project_version),
        properties=[Property(name=f"selfcest:sha256:{lock.name}", value=sha256(lock)) for lock in locks],
    )
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=project, timestamp=when),
        serial_number=uuid5(NAMESPACE_URL, f"{name}:{commit}"),  # the same for the same commit
    )
    bom.register_dependency(project, components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def provenance(files: list[Path], commit: str, changed: list[str], started: datetime) -> dict[str, Any]:
    """An in-toto statement about the files: https://slsa.dev/spec/v1.0/provenance."""
    tags = git("tag", "--points-at", commit).split()
    tools = [{"uri": f"pkg:pypi/{name}@{version(name)}"} for name in BUILD_TOOLS]
    definition = {
        "buildType": "urn:selfcest:make-release:v1",
        "externalParameters": {"commit": commit, "tags": tags, "tree": "dirty" if changed else "clean"},
        "internalParameters": {
            "changed": changed,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "source_date_epoch": int(git("show", "--no-patch", "--format=%ct", commit)),
        },
        "resolvedDependencies": [{"uri": "git+file:.", "digest": {"gitCommit": commit}}, *tools],
    }
    times = {"startedOn": started.isoformat(timespec="seconds"), "finishedOn": now().isoformat(timespec="seconds")}
    return {
        "_type": STATEMENT,
        "subject": [{"name": file.name, "digest": {"sha256": sha256(file)}} for file in files],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": definition,
            "runDetails": {"builder": {"id": "urn:selfcest:local-machine"}, "metadata": times},
        },
    }


def now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder, or none yet")
    parser.add_argument("--allow-dirty", action="store_true", help="build though files differ from the commit")
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        sys.exit(f"{options.folder} is not empty; remove it first, or name another folder")
    if not (ROOT / ".git").exists():
        sys.exit(f"{ROOT} is no checkout; a release is built from a commit")
    started = now()
    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain").splitlines()
    if changed and not options.allow_dirty:
        sys.exit(f"{len(changed)} files differ from commit {commit[:12]} ({changed[0]}); commit or remove them")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, project_version = project["name"], project["version"]
    committed = int(git("show", "--no-patch", "--format=%ct", commit))
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(options.folder.resolve())]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(committed)})
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    bom = options.folder / f"{name}-{project_version}.cdx.json"
    when = datetime.fromtimestamp(committed, UTC)
    bom.write_text(bill_of_materials(locks, name, project_version, commit, when) + "\n", encoding="utf-8")
    files = sorted(options.folder.iterdir())
    statement = options.folder / f"{name}-{project_version}.provenance.json"
    contents = provenance(files, commit, changed, started)
    statement.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    for file in (*files, statement):
        print(f"{sha256(file)}  {file}")


if __name__ == "__main__":
    main()
