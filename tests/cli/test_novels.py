"""The page about novels: its commands on a tiny model, two books and a few stories that are made in place."""

from __future__ import annotations

import json
import re
import shlex
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_models import CHATML, byte_level, chat_tokenizer, tiny_llama
from test_page_commands import PAGES, commands
from test_prose import make_package, serialise
from test_solve import Console, selfcest

from selfcest_env.tasks import novels
from selfcest_env.tasks.long_context import split_sentences
from selfcest_env.tasks.room_stories import PEOPLE, RoomStories
from selfcest_eval.play.config import parse_study
from selfcest_eval.play.results import read_results

__all__ = ["selfcest"]  # a fixture

ROOT = Path(__file__).parents[2]
SHORT = {"words": 40, "words_per_document": 30}
VARIANTS = ("delegating", "memory", "full_reader")


def make_overrides(paths: list[str], model: str) -> list[str]:
    overrides = [f"{path}.{key}={value}" for path in paths for key, value in SHORT.items()]
    return [*overrides, f"model.options.source={model}"]


def write_inputs(folder: Path) -> str:
    """Write the package, the official stories and the model, and return the model's folder."""
    records = b""
    for title in ("Emma", "Persuasion", "Mansfield Park"):
        sentences = [f"It was the day number {number} of that very long year." for number in range(40)]
        content = serialise([title.upper(), "", *sentences])
        records += struct.pack(">I", len(content)) + zlib.compress(content)
    Path("novels.deb").write_bytes(make_package({"./x/janeaustenr/data/Rdata.rdb": records}))
    lines = []
    for task in RoomStories(1, 4, 8, stories=4).tasks():
        statements = split_sentences(" ".join(task.context.values()))
        facts = " ".join(str(fact + 1) for fact in json.loads(str(task.metadata["facts"])))
        lines += [f"{number} {statement}" for number, statement in enumerate(statements, 1)]
        lines.append(f"{len(statements) + 1} {task.prompt}\t{task.answer}\t{facts}")
    stories = folder / "data" / "babi" / "tasks_1-20_v1-2" / "en"
    stories.mkdir(parents=True)
    for part in ("train", "test"):
        file = stories / f"qa1_single-supporting-fact_{part}.txt"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = chat_tokenizer(CHATML, byte_level([PAGES["docs/novels.md"]], vocab_size=1000))
    tiny_llama(tokenizer, positions=8192).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    return "tiny"


@pytest.mark.slow
def test_the_page_runs(selfcest: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bm25s")
    monkeypatch.setenv("SELFCEST_DATA", str(tmp_path / "data"))
    (tmp_path / "training").symlink_to(ROOT / "training")
    model = write_inputs(tmp_path)
    num_run = 0
    for line in commands(PAGES["docs/novels.md"]):
        program, *words = shlex.split(line)
        if program == "pip" or words[0] == "plan":  # tests/training/test_calibration.py times engines
            continue
        num_run += 1
        if program == "python":
            assert words[:2] == ["-m", novels.__name__]
            assert novels.main([*words[2:], "--package", "novels.deb"]) == 0
        elif words[0] == "train":
            paths = []
            for name, task in read_tasks("novels").items():
                if task["name"] != "room_stories":
                    inner = ".source" if task["name"] == "memory_steps" else ""
                    paths.append(f"tasks.{name}.options{inner}")
            small = ["batch_tokens=4000", "pool_tokens=20000", "phases.0.tokens=2000"]
            phases = [f"variants.{name}.warmstart.{change}" for name in VARIANTS for change in small]
            others = [
                "seeds=[0]",
                "workers=1",
                "limits.context_tokens=8192",
                "micro_batch_tokens=8192",
                "limits.turn_tokens=2000",
                "variants.full_reader.limits.context_tokens=8192",
                "variants.full_reader.limits.turn_tokens=2000",
            ]
            # The tiny tokenizer counts characters, so calls of many parts and whole texts are too long for the model.
            others += [
                f"variants.delegating.warmstart.phases.0.mix.{name}.share=0"
                for name in ("short", "short_dense", "long", "long_dense", "many")
            ]
            others += ["variants.full_reader.warmstart.phases.0.mix.whole.share=0"]
            # The untrained model writes until it is cut, so there is one instance for each variant.
            eval_sets = "[{family: short, size: x}, {family: steps_short, size: x}]"
            others += ["evaluation.episodes=1", f"evaluation.eval_sets={eval_sets}"]
            others += ["tasks.stories.options.max_statements=8", "sampler.options.dtype=float32"]
            selfcest(*words, *make_overrides(paths, model), *phases, *others)
            assert (tmp_path / "runs" / "novels" / "full_reader" / "seed0" / "model" / "config.json").is_file()
        else:
            # The lengths of the page are replaced; the name and the strategies of the study are not.
            # There is one instance, which is too few to time.
            words = [word for word in words if ".words" not in word and not word.startswith("timed_batches")]
            config = yaml.safe_load(Path(words[words.index("-c") + 1]).read_text(encoding="utf-8"))
            paths = [f"tasks.{name}.options" for name in config["tasks"]]
            overrides = [word for word in make_overrides(paths, model) if not word.startswith("model.")]
            for cost, options in config["costs"].items():
                if "model" in options.get("options", {}):
                    overrides.append(f"costs.{cost}.options.model={model}")
            if "full_reader_scaled_not_fine_tuned" in config["strategies"]:
                scaled = "strategies.full_reader_scaled_not_fine_tuned.policy.options.model.options"
                overrides.append(f"{scaled}.source={model}")
            selfcest(*words, *overrides, "seeds=[0]", "episodes=1", "limits.turn_tokens=60", "limits.max_turns=1")
            name = next((word.removeprefix("name=") for word in words if word.startswith("name=")), config["name"])
            results = list(read_results(tmp_path / "studies" / name / "results.jsonl"))
            assert results
            for result in results:
                assert result.costs is None or all(result.costs[cost] > 0 for cost in config["compared"])
            strategies = {result.place.strategy for result in results}
            assert strategies == (
                {"delegate", "memory_agent", "bm25_sentences", "bm25_sentences_one_hop"}
                if "128k" in name
                else strategies | {"oracle_documents", "full_reader"}
            )
    assert num_run == 5


def read_tasks(name: str) -> dict[str, Any]:
    config = yaml.safe_load((ROOT / f"training/configs/{name}.yaml").read_text(encoding="utf-8"))
    return dict(config["tasks"])


def find_sources(value: Any, name: str) -> list[dict[str, Any]]:
    """Return the options of all sources of this name in a config, at any depth."""
    sources: list[dict[str, Any]] = []
    if isinstance(value, dict):
        if value.get("name") == name:
            sources.append(value.get("options", value))
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            sources += find_sources(item, name)
    return sources


def find_fillers(tasks: dict[str, Any]) -> list[dict[str, Any]]:
    return [source["filler"] for source in find_sources(tasks, "babilong")]


def test_training_gate_and_evaluation_share_no_story_and_no_book() -> None:
    training = read_tasks("novels")
    assert not find_sources(training, "babi")
    # The official stories have the default names of `RoomStories`.
    stories = find_sources(training, "room_stories")
    assert stories
    for source in stories:
        assert source["task"] == 1
        assert set(source["people"]).isdisjoint(PEOPLE)
    (held_out,) = {tuple(filler["test_books"]) for filler in find_fillers(training)}
    assert {filler["part"] for filler in find_fillers(training)} == {"train"}
    files: list[str] = []
    books: list[str] = []
    for study in ("novels_gate", "novels_frontier"):
        tasks = read_tasks(study)
        assert not find_sources(tasks, "room_stories")
        (file,) = {source["path"] for source in find_sources(tasks, "babi")}
        (test_books,) = {tuple(filler["test_books"]) for filler in find_fillers(tasks)}
        assert {filler["part"] for filler in find_fillers(tasks)} == {"test"}
        files.append(file)
        books += test_books
    assert len(set(files)) == len(files)
    assert len(set(books)) == len(books)
    assert set(books) == set(held_out)


@pytest.mark.parametrize("name", ["novels_gate", "novels_frontier"])
def test_the_studies_are_valid(name: str) -> None:
    path = ROOT / f"training/configs/{name}.yaml"
    assert parse_study(yaml.safe_load(path.read_text(encoding="utf-8"))).name == name


def test_the_page_has_no_number_that_the_configs_do_not_have() -> None:
    text = PAGES["docs/novels.md"]
    config = (ROOT / "training/configs/novels.yaml").read_text(encoding="utf-8")
    frontier = (ROOT / "training/configs/novels_frontier.yaml").read_text(encoding="utf-8")
    assert len(re.findall(r"tokens: 170000", config)) == len(VARIANTS)
    assert "context_tokens: 2048" in config
    for limit in (48, 24, 8):
        assert f"limit: {limit}" in frontier
    assert "documents: 4" in frontier
    assert len(text.split()) <= 1100
