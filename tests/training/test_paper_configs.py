"""The paper's configs on invented files in the official formats: all is built, and what is missing is the model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_env.reward import make_reward
from selfcest_env.tasks.splits import TRAIN
from selfcest_eval.play.config import load_study
from selfcest_eval.play.contamination import report_contamination
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.study import Study
from selfcest_eval.report.training_run import make_run_study
from selfcest_training.config_file import load_config
from selfcest_training.credit import make_assigner
from selfcest_training.families import split

CONFIGS = Path(__file__).parents[2] / "training" / "configs" / "paper"
NAMES = ("arithmetic", "aime", "math_hard", "mixed", "musique", "two_wiki")
COUNT = 60


def musique(i: int) -> dict[str, Any]:
    paragraphs = [
        {"idx": k, "title": title, "paragraph_text": f"{title} {i} is in {place}.", "is_supporting": True}
        for k, (title, place) in enumerate([("Ulm", "Bonn"), ("Ulm", "Rome")])
    ]
    hop = {"id": 1, "question": f"Where is Ulm {i}?", "answer": "Rome", "paragraph_support_idx": 1}
    return {
        "id": f"2hop__{i}",
        "paragraphs": paragraphs,
        "question": f"Where is the Ulm of {i}?",
        "question_decomposition": [hop],
        "answer": "Rome",
        "answer_aliases": ["Roma"],
        "answerable": True,
    }


def two_wiki(i: int) -> dict[str, Any]:
    return {
        "_id": str(i),
        "type": "compositional",
        "question": f"Where was the maker of film {i} born?",
        "answer": "Ulm",
        "context": [[f"Film {i}", ["It is by Ann Lee."]], ["Ann Lee", ["She was born in Ulm."]]],
        "supporting_facts": [[f"Film {i}", 0], ["Ann Lee", 0]],
        "evidences": [[f"Film {i}", "director", "Ann Lee"], ["Ann Lee", "place of birth", "Ulm"]],
    }


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `SELFCEST_DATA` names, and an empty working directory beside it."""
    folder, numbers = tmp_path / "data", range(COUNT)

    def write(name: str, text: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    problems = [{"id": i, "problem": f"Of 2025, what is {i}?", "answer": str(i)} for i in numbers]
    write("aime/aime_2025.jsonl", "".join(json.dumps(problem) + "\n" for problem in problems))
    with (folder / "aime/aime_1983_2024.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "Year", "Problem Number", "Question", "Answer", "Part"])
        writer.writerows([f"{1990 + i % 9}-{i}", 1990 + i % 9, i, f"Find {i}, please.", i, ""] for i in numbers)
    for part in ("train", "test"):
        for i in numbers:
            problem = {"problem": f"The {part} of {i}?", "level": f"Level {5 - i % 2}", "type": "Algebra"}
            write(f"math/{part}/algebra/{i}.json", json.dumps({**problem, "solution": f"$\\boxed{{\\frac{{{i}}}2}}$"}))
    for part, start in (("train", 0), ("dev", COUNT)):
        records = [musique(i) for i in range(start, start + COUNT)]
        write(f"musique/musique_ans_v1.0_{part}.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        write(f"2wikimultihopqa/{part}.json", json.dumps([two_wiki(i) for i in range(start, start + COUNT)]))
    monkeypatch.setenv("SELFCEST_DATA", str(folder))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_training_configs_draw_and_judge_their_tasks(name: str, data: Path) -> None:
    config = load_config(CONFIGS / f"{name}.yaml", ["evaluation.episodes=2"])
    reward = make_reward(config.reward.name, **config.reward.options)
    study = make_run_study(config)
    tasks = [task for cell in study.eval_sets for task in instances_of(study, cell, source_of(study, cell))]
    for variant in config.variants.values():
        make_assigner(variant.rl.credit.name, variant.rl.credit.options, where="credit")
        drawn = {family: split(config.tasks[family], TRAIN) for family in variant.families}
        tasks += [source.draw(np.random.default_rng(0)) for source in drawn.values()]
        assert set(variant.families) <= {cell.family for cell in config.evaluation.eval_sets}
    for task in tasks:
        assert not reward.grader.grade(task, None).correct
        assert reward.grader.grade(task, task.answer).correct


@pytest.mark.parametrize("name", NAMES)
def test_studies_are_built_up_to_the_models(name: str, data: Path) -> None:
    overrides = ["episodes=1"]
    with pytest.raises(ConfigError, match=rf"there is no .*runs/paper_{name}/config.yaml with the config of its model"):
        Study(load_study(CONFIGS / f"{name}_frontier.yaml", overrides))
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "arithmetic"])
def test_training_and_study_share_no_question(name: str, data: Path) -> None:
    paths = [CONFIGS / f"{name}.yaml", CONFIGS / f"{name}_frontier.yaml"]
    rows = [line.split("|") for line in report_contamination(paths, Console(quiet=True)).splitlines()[2:]]
    assert rows
    assert all(row[5].strip() == "0" for row in rows), rows


def test_what_the_authors_train_with() -> None:
    """The constants of the released code, in every experiment and variant."""
    lengths = dict.fromkeys(NAMES, 2048 + 4096) | {"musique": 4096 + 1024, "two_wiki": 4096 + 1024}
    for name in NAMES:
        config = load_config(CONFIGS / f"{name}.yaml")
        limits = config.limits
        assert (limits.context_tokens, limits.max_turns, limits.max_clones_per_call) == (lengths[name], 10, 30)
        assert (limits.max_depth, limits.turn_tokens) == (1, 1024)
        for variant in config.variants.values():
            rl, optimizer, loss = variant.rl, variant.rl.optimizer, variant.rl.loss
            assert (rl.tasks_per_step, rl.group_size, rl.tasks_per_step // rl.minibatches) == (32, 4, 8)
            assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.max_grad_norm) == (6e-7, 10, 1.0)
            assert optimizer.decay_share == 0
            assert dict(loss.options) == {"clip_low": 0.1, "clip_high": 0.1}
            assert (loss.name, loss.terms["kl"].weight, rl.temperature) == ("clipped", 5e-4, 1.0)
            assert not variant.warmstart.phases
    mixed = load_config(CONFIGS / "mixed.yaml")
    assert mixed.variants["delegating"].rl.tasks == {"arithmetic": 1, "aime": 3, "math_hard": 2}
    assert load_config(CONFIGS / "two_wiki.yaml").tasks["two_wiki"].options["limit"] == 1000
    assert load_study(CONFIGS / "two_wiki_frontier.yaml").tasks["two_wiki"].options["limit"] == 2000
    for name in NAMES:
        credit = load_config(CONFIGS / f"{name}.yaml").variants["delegating"].rl.credit
        domain = "math" if name in ("aime", "math_hard", "mixed") else "arithmetic"
        assert (credit.name, dict(credit.options)) == ("gated_paper", {"domain": domain})
