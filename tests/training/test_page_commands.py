"""Every command on the pages that a newcomer reads is run by a test, or is here with the reason why none runs it."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest
from test_solve import Console, selfcest

from selfcest_training.shipped import shipped_policies

__all__ = ["selfcest"]  # a fixture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        *(f"docs/{name}.md" for name in ("index", "quickstart", "tutorial", "look", "gallery", "releases")),
    )
}
TRAINS = (
    "it trains for minutes to hours; a smaller run with all its files is test_cli.py::test_a_whole_run_and_its_files"
)
INSTALLS = "it would install into the environment of the tests; tests/test_wheel.py installs into others"
NEEDS_A_MODEL = "it needs a model or a server that is not here; tests/training/test_solve.py asks small ones"
NOT_RUN = {
    "make train": TRAINS,
    'make train ARGS="-c training/configs/three_arms_3seeds.yaml"': TRAINS,
    "make test": "it runs the tests",
    "selfcest train name=mine seeds=[0,1] compute_tokens=20000000 evaluation.episodes=100": TRAINS,
    "selfcest train name=mine seeds=[0,1] compute_tokens=20000000 evaluation.episodes=100 --resume": TRAINS,
    "selfcest warmstart name=imitation_only": TRAINS,
    "selfcest train name=example workers=1 log_groups=1 evaluation.episodes=40": TRAINS,
    "pip install -e .": INSTALLS,
    'pip install -e ".[train]"': INSTALLS,
    'pip install "selfcest @ git+URL@v0.1.0"': INSTALLS,
    'pip install "selfcest[train] @ git+URL@v0.1.0"': INSTALLS,
    "pip install selfcest-0.1.0-py3-none-any.whl": INSTALLS,
    'pip install "selfcest-0.1.0-py3-none-any.whl[train]"': INSTALLS,
    'selfcest solve "Who chairs the meeting in June?" --server http://127.0.0.1:8000/v1 --name my-model '
    "--documents minutes/": NEEDS_A_MODEL,
    'selfcest solve "Name three primes." --policy smollm2 --temperature 0.7 --seed 1 --out asked.jsonl '
    "limits.total_tokens=4000": NEEDS_A_MODEL,
}
# By tests of their own: of a page all of it, or the lines that match.
ELSEWHERE = {
    "docs/tutorial.md": ("", "tests/training/test_tutorial.py::test_the_page_runs_from_top_to_bottom"),
    "docs/gallery.md": (
        "selfcest trace",
        "tests/training/test_gallery.py::test_every_picture_is_what_the_command_below_it_draws",
    ),
}
BY_PYTHON = {
    "python benchmarks/gallery.py --play": (
        "tests/training/test_gallery.py::test_episodes_played_again_are_those_that_are_stored"
    ),
    'python -c "import selfcest_env; print(selfcest_env.__version__)"': (
        "tests/test_version.py::test_the_version_is_that_of_the_metadata"
    ),
}
SMALLER = ("episodes=1", "budgets=[150]")  # of studies, which else take minutes
FIRST = "tests/training/test_shipped.py::test_the_quickstart_begins_with_them"


def commands(text: str) -> list[str]:
    """The lines of all blocks of commands, without comments."""
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
    return [line for line in (re.sub(r"\s+# .*$", "", line).strip() for line in lines) if line]


def first_block(text: str) -> list[str]:
    return commands(re.findall(r"^```bash\n.*?^```$", text, re.MULTILINE | re.DOTALL)[0] + "\n")


def run_here(page: str) -> list[str]:
    """Lines that the test below runs."""
    words, _ = ELSEWHERE.get(page, ("-", ""))
    lines = [line for line in commands(PAGES[page]) if not line.startswith(words)]
    if page == "docs/quickstart.md":
        lines = lines[len(first_block(PAGES[page])) :]
    return [line for line in lines if line not in NOT_RUN and line not in BY_PYTHON]


def test_every_command_is_run_or_says_why_not() -> None:
    every = {line for text in PAGES.values() for line in commands(text)}
    assert set(NOT_RUN) | set(BY_PYTHON) <= every, "one that no page has any more"
    for page in PAGES:
        for line in run_here(page):
            assert re.match(r"(\.venv/bin/)?selfcest ", line), f"{page}: nothing runs {line}"
    for test in (FIRST, *BY_PYTHON.values(), *(test for _, test in ELSEWHERE.values())):
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


@pytest.mark.parametrize("command", NOT_RUN)
def test_not_run(command: str) -> None:
    """Loud: the summary of the tests names each with its reason."""
    pytest.skip(f"{command}: {NOT_RUN[command]}")


@pytest.fixture
def folder(selfcest: Console, tmp_path: Path) -> Path:
    """What the pages take for granted: a checkout, the run that `make train` leaves, and questions asked."""
    (tmp_path / "docs").symlink_to(DOCS)
    with tarfile.open(DOCS / "evidence" / "example_run.tar.xz") as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    shutil.copytree(tmp_path / "runs" / "example", tmp_path / "runs" / "quick")
    model = tmp_path / "runs" / "quick" / "deciding" / "seed0" / "model"
    shutil.copytree(shipped_policies()["deciding"], model)
    selfcest("solve", "5:[60]-[65];[10]", "--policy", "deciding", "--out", "asked.jsonl")
    selfcest("evaluate", "name=mine", *SMALLER)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_others_run(selfcest: Console) -> None:
    for line in dict.fromkeys(line for page in PAGES for line in run_here(page)):
        program, *words = shlex.split(line)
        if words[0] == "evaluate":  # later overrides win
            words = [*words, *SMALLER]
        assert program.removeprefix(".venv/bin/") == "selfcest"
        printed = selfcest(*words)
        for option, made in itertools.pairwise(words):
            if option in ("--html", "--svg", "--gif"):
                assert Path(made).stat().st_size > 1000, line
        if "--answer" in words:
            assert "\nright: expected" in printed, line
