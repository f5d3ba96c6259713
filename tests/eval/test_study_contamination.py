"""Questions that a study shares with the training of its policies, and that data files share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

import selfcest_cli.main as cli
from selfcest_agents.tiny import TinyConfig, TinyTokenizer, build_tiny, save_pretrained
from selfcest_cli.study import run_study
from selfcest_env.errors import ConfigError, DataError
from selfcest_env.plugin import PlugIn
from selfcest_env.tasks.splits import TRAIN
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.contamination import find_contamination, report_contamination
from selfcest_eval.play.study import Study
from selfcest_eval.report import study_report as report
from selfcest_training.config_file import parse_as
from selfcest_training.families import split

QUIET = Console(quiet=True)
COUNT = 60
TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16, "max_positions": 96}


def write(file: Path, numbers: range, phrasing: str = "what is {} and 0?") -> str:
    rows = ({"question": phrasing.format(i), "answer": str(i), "documents": {"a": f"{i}"}} for i in numbers)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def questions(path: str) -> dict[str, Any]:
    return {"name": "questions", "options": {"path": path}}


def run_config(folder: Path, tasks: dict[str, Any], trained: str) -> Path:
    """The config of a run with one variant, which is trained on one family."""
    data = {
        "name": "r",
        "tasks": tasks,
        "model": {"name": "tiny", "options": TINY},
        "limits": {"total_tokens": 90, "max_depth": 0},
        "variants": {"alone": {"warmstart": {}, "rl": {"tasks": {name: float(name == trained) for name in tasks}}}},
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return folder / "config.yaml"


def model(folder: Path, tasks: dict[str, Any], trained: str) -> Path:
    """Its model."""
    place = run_config(folder, tasks, trained).parent / "alone" / "seed0" / "model"
    save_pretrained(build_tiny(TinyConfig(**TINY), 0), TinyTokenizer(), place)
    return place


def study(output: Path, tasks: dict[str, Any], policy: Path | str) -> dict[str, Any]:
    return {
        "name": "s",
        "output": str(output),
        "budgets": [80],
        "limits": {"max_depth": 0, "turn_tokens": 8, "answer_reserve": 4},
        "episodes": None,
        "resamples": 100,
        "policy": {"name": "model", "options": {"folder": str(policy)}},
        "strategies": {"monolithic": {}},
        "tasks": tasks,
        "eval_sets": [{"family": family, "size": "all"} for family in tasks],
    }


def warnings_of(output: Path, tasks: dict[str, Any], policy: Path) -> list[str]:
    return find_contamination(Study(parse_as(StudyConfig, study(output, tasks, policy))))


def test_a_study_warns_of_questions_that_its_policies_were_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = write(tmp_path / "own.jsonl", range(COUNT)), write(tmp_path / "other.jsonl", range(100, 100 + COUNT))
    policy = model(tmp_path / "run", {"own": questions(own), "other": questions(other)}, "own")
    draws, rng = split(PlugIn(**questions(own)), TRAIN), np.random.default_rng(0)
    drawn = {draws.draw(rng).prompt for _ in range(2000)}
    assert 0.6 * COUNT < len(drawn) < COUNT
    (line,) = warnings_of(tmp_path, {"mine": questions(own)}, policy)
    assert line == f"{len(drawn)} of {COUNT} instances of mine all are questions of training on own."
    spelled = write(tmp_path / "spelled.jsonl", range(COUNT), "WHAT is {}, and 0")
    assert warnings_of(tmp_path, {"mine": questions(spelled)}, policy) == [line]
    assert warnings_of(tmp_path, {"mine": questions(other)}, policy) == [], "the variant is not trained on this family"
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # slow
    config = parse_as(StudyConfig, study(tmp_path, {"mine": questions(own)}, policy))
    assert line in (run_study(config, resume=False, console=QUIET) / "table.md").read_text(encoding="utf-8")
    Path(own).unlink()
    (line,) = warnings_of(tmp_path, {"mine": questions(other)}, policy)
    assert line.startswith("Whether training on own has seen these instances cannot be told: ")


def test_of_a_mixture_the_training_part_is_by_question_too(tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", range(COUNT))
    mixed = {"name": "mixture", "options": {"sources": [{"name": "range_sum"}, {"name": "questions", "path": own}]}}
    policy = model(tmp_path / "run", {"mixed": mixed}, "mixed")
    draws, rng = split(PlugIn(**mixed), TRAIN), np.random.default_rng(0)
    drawn = {task.prompt for _ in range(2000) if (task := draws.draw(rng)).source == "questions"}
    assert 0.6 * COUNT < len(drawn) < COUNT
    (line,) = warnings_of(tmp_path, {"mine": questions(own)}, policy)
    assert line == f"{len(drawn)} of {COUNT} instances of mine all are questions of training on mixed 2."


@pytest.mark.parametrize("part", ["train", "test"])
def test_of_a_split_only_its_part_was_trained_on(tmp_path: Path, part: str) -> None:
    own = write(tmp_path / "own.jsonl", range(COUNT))
    source = {"name": "questions", "path": own}
    half = {"name": "hashed_split", "options": {"source": source, "part": part, "test_fraction": 0.5}}
    draws, rng = split(PlugIn(**half), TRAIN), np.random.default_rng(0)
    drawn = {draws.draw(rng).prompt for _ in range(2000)}
    (line,) = warnings_of(tmp_path, {"mine": questions(own)}, model(tmp_path / "run", {"half": half}, "half"))
    assert line == f"{len(drawn)} of {COUNT} instances of mine all are questions of training on half."
    assert 0 < len(drawn) < 0.8 * COUNT, "a run without this split draws nine tenths"


def test_single_turns_of_a_memory_are_trained_on_their_text(tmp_path: Path) -> None:
    """A source inside another one was not seen, so policies with a memory were never warned of."""
    lines = []
    for number in range(COUNT):
        name = ["Mary", "John", "Daniel", "Sandra"][number % 4]
        room = ["garden", "kitchen", "office", "hallway"][number // 4 % 4]
        lines += [f"1 {name} moved to the {room}.", f"2 {name} went to the office.", f"3 Where is {name}?\toffice\t2"]
    (tmp_path / "qa1.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "books").mkdir()
    days = "\n\n".join(f"The day number {number} of the year was rather quiet." for number in range(200))
    (tmp_path / "books" / "b.txt").write_text(days, encoding="utf-8")
    options = {
        "source": {"name": "babi", "path": str(tmp_path / "qa1.txt")},
        "filler": {"path": str(tmp_path / "books")},
        "words": 40,
        "words_per_document": 40,
    }
    text = {"name": "babilong", "options": options}
    turns = {"name": "memory_steps", "options": {"source": {"name": "babilong", **options}}}
    found = [
        warnings_of(tmp_path, {"mine": text}, model(tmp_path / name, {"t": trained}, "t"))
        for name, trained in (("whole", text), ("turns", turns))
    ]
    assert found[0] == found[1]
    assert "questions of training on t" in found[0][0]


def test_questions_shared_by_the_files_of_configs(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own.jsonl", range(20)), write(tmp_path / "other.jsonl", range(15, 40))
    part = {"name": "questions", "options": {"path": own, "part": "train", "test_fraction": 0.5}}
    mixed = {"name": "mixture", "options": {"sources": [{"name": "range_sum"}, {"name": "questions", "path": other}]}}
    run = run_config(tmp_path / "run", {"drawn": {"name": "range_sum"}, "part": part, "mixed": mixed}, "part")
    asked = {"test": {"name": "questions", "options": {"path": own, "part": "test", "test_fraction": 0.5}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(tmp_path, asked, "x")), encoding="utf-8")
    result = CliRunner().invoke(cli.app, ["contamination", str(run), str(tmp_path / "study.yaml")])
    assert result.exit_code == 0, result.output
    table = report_contamination([run, tmp_path / "study.yaml"], QUIET)
    assert table in result.output
    found = {(row[1].split(": ")[1], row[3].split(": ")[1]): int(row[5]) for row in _rows(table)}
    assert found.keys() == {("part", "mixed 2"), ("part", "test all"), ("mixed 2", "test all")}
    assert found["part", "test all"] == 0
    assert found["part", "mixed 2"] + found["mixed 2", "test all"] == 5


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]


def test_configs_without_two_files(tmp_path: Path) -> None:
    run = run_config(tmp_path / "run", {"drawn": {"name": "range_sum"}}, "drawn")
    with pytest.raises(ConfigError, match="found 0 sources that read files \\(none\\), and a comparison needs two"):
        report_contamination([run], QUIET)
    gone = {"a": questions("gone.jsonl"), "b": questions("gone too.jsonl")}
    with pytest.raises(DataError, match=r"gone.jsonl: no such file"):
        report_contamination([run_config(tmp_path / "run", gone, "a")], QUIET)
