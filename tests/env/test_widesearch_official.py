"""The grader `wide` against the official evaluation itself, on random tables and where the two differ on purpose.

Needs a checkout of ByteDance-Seed/WideSearch in `SELFCEST_WIDESEARCH`, pandas and dateparser. Its language model is
replaced by one that says nothing, so that columns and keys are taken as they are.
"""

import importlib
import json
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfcest_env.graders.wide import WideScores, wide_scores, write_table
from selfcest_env.types import Task

KEYS = ("Ulm", "bonn", "Jena an der Saale", "Trier", "Kiel**", "N/A")
# Per column: how it is graded, and cells on which both agree by rule.
COLUMNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "river": (
        {"preprocess": ["norm_str"], "metric": ["exact_match"]},
        ("Rhine", "rhine ", "**Saale**", "", "null", "x"),
    ),
    "people": (
        {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.1},
        ("100", "about 105 people", "1,000", "-3", "50%", ".5", "none", "1100.5 km", ""),
    ),
    "plain": ({"preprocess": [], "metric": ["exact_match"]}, ("a b", "A B", "ab", "a-b")),
    "link": (
        {"preprocess": [], "metric": ["url_match"]},
        ("https://a.org/x", "http://a.org", "https://b.org?q=1", "https://a.org/, https://b.org/"),
    ),
    "born": (
        {"preprocess": ["norm_date"], "metric": ["exact_match"]},
        ("3 May 2024", "May 3, 2024", "2024-05-03", "2024-06", "1 June 2024", "2024年5月3日"),
    ),
    "died": ({"preprocess": [], "metric": ["date_near"]}, ("3 May 2024", "2024-06-03", "June 4, 2024", "2025-01-01")),
    "part": ({"preprocess": ["norm_str"], "metric": ["in_match"]}, ("red", "red and green", "green", "blue")),
}


@pytest.fixture(scope="module")
def official() -> Iterator[Any]:
    checkout = os.environ.get("SELFCEST_WIDESEARCH")
    if checkout is None:
        pytest.skip("SELFCEST_WIDESEARCH names no checkout of ByteDance-Seed/WideSearch")
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("dateparser")
    if not pandas.__version__.startswith("2."):
        pytest.skip(f"the official evaluation is locked to pandas 2; this is {pandas.__version__}")

    def stub(name: str, **members: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        vars(module).update(members)
        return module

    quiet = types.SimpleNamespace(**dict.fromkeys(("info", "debug", "error"), lambda *_: None))
    stubs = {
        "pandarallel": stub("pandarallel", pandarallel=types.SimpleNamespace(initialize=lambda **_: None)),
        "loguru": stub("loguru", logger=quiet),
        "datasets": stub("datasets", load_dataset=None),
        "huggingface_hub": stub("huggingface_hub", snapshot_download=None, try_to_load_from_cache=None),
        "src.utils.llm": stub("src.utils.llm", llm_completion=lambda **_: None),
    }
    before = dict(sys.modules)
    sys.modules.update(stubs)
    sys.path.insert(0, checkout)
    try:
        yield types.SimpleNamespace(
            evaluation=importlib.import_module("src.evaluation.evaluation"),
            loader=importlib.import_module("src.evaluation.data_loader"),
            pandas=pandas,
        )
    finally:
        sys.path.remove(checkout)
        for name in [*sys.modules]:
            if name in stubs or name == "src" or name.startswith("src."):
                del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name in stubs})


def draw(rng: random.Random) -> tuple[dict[str, Any], list[str], list[list[str]], list[list[str]]]:
    """What says how to grade, columns, gold rows, and rows of an answer; keys differ also where they are prepared."""
    chosen = rng.sample([*COLUMNS], rng.randint(1, 4))
    pipeline = {"city": {"preprocess": rng.choice([[], ["norm_str"]]), "metric": ["exact_match"]}}
    pipeline |= {name: COLUMNS[name][0] for name in chosen}
    columns = ["city", *chosen]

    def rows(keys: list[str]) -> list[list[str]]:
        return [[key, *(rng.choice(COLUMNS[name][1]) for name in chosen)] for key in keys]

    gold = rows(rng.sample(KEYS, rng.randint(2, 5)))
    found = [row[:] if rng.random() < 0.7 else rows([row[0]])[0] for row in gold if rng.random() < 0.9]
    found += rows([key for key in KEYS if key not in [row[0] for row in gold]][: rng.choice([0, 0, 1])])
    if found and rng.random() < 0.3:
        found.append(rows([found[0][0]])[0])  # once more: the first counts
    rng.shuffle(found)
    return {"required": columns, "unique_columns": ["city"], "eval_pipeline": pipeline}, columns, gold, found


def both(
    official: Any, folder: Path, evaluation: dict[str, Any], gold: list[list[str]], text: str
) -> tuple[Any, WideScores]:
    """What the official evaluation says of an answer, and what the grader says."""
    columns = evaluation["required"]
    official.pandas.DataFrame(gold, columns=columns).to_csv(folder / "t.csv", index=False)
    loader = official.loader.WideSearchDataLoader.__new__(official.loader.WideSearchDataLoader)
    answer = loader.load_answer(str(folder / "t.csv"), columns)
    query = official.loader.WideSearchQuery("t", "?", evaluation, answer, "en")
    theirs = official.evaluation.evaluate_single_query(query, official.loader.WideSearchResponse("t", text))
    task = Task("t", "?", write_table(columns, gold), "x", metadata={"evaluation": json.dumps(evaluation)})
    ours = wide_scores(task, text)
    assert "error" not in theirs.msg or not ours.items.right, (
        theirs.msg
    )  # it raises where no row is aligned, and says 0
    return theirs, ours


def test_scores_are_those_of_the_official_evaluation(official: Any, tmp_path: Path) -> None:
    rng, successes = random.Random(0), 0
    for trial in range(1000):
        evaluation, columns, gold, found = draw(rng)
        order = rng.sample(columns, len(columns))
        answer = write_table(order, [[row[columns.index(name)] for name in order] for row in found])
        text = rng.choice(["Here:\n{}\nDone.", "```markdown\n{}\n```"]).format(answer)
        theirs, ours = both(official, tmp_path, evaluation, gold, text)
        for what, hits in (("row", ours.rows), ("item", ours.items)):
            for measure in ("precision", "recall", "f1"):
                wanted = getattr(theirs, f"{measure}_by_{what}")
                assert getattr(hits, measure) == pytest.approx(wanted, abs=1e-12), (trial, what, measure, gold, text)
        assert float(ours.success) == theirs.score, (trial, gold, text)
        successes += ours.success
    assert 100 < successes < 900


TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}
PLAIN = {"preprocess": [], "metric": ["exact_match"]}


@pytest.mark.parametrize(
    ("step", "gold", "found", "recalls"),
    [
        ({"metric": ["url_match"]}, [["a", "no address"]], [["a", "another"]], (1.0, 0.5)),
        ({"metric": ["date_near"]}, [["a", "soon"]], [["a", "later"]], (1.0, 0.5)),
        ({**TEXT, "metric": ["in_match"]}, [["a", "red"]], [["a", "*"]], (1.0, 0.5)),
        # A column of numbers and nothing is one of 5.0 and nan; 1.50 is 1.5.
        (PLAIN, [["a", "5"], ["b", ""]], [["a", "5"], ["b", "6"]], (0.5, 0.75)),
        (PLAIN, [["a", "1.50"]], [["a", "1.5"]], (1.0, 0.5)),
        # Rows that become one, and two metrics of a column, count twice.
        (TEXT, [["ab", "x"]], [["ab", "x"], ["AB", "x"]], (2.0, 1.0)),
        ({**TEXT, "metric": ["exact_match", "in_match"]}, [["a", "x"]], [["a", "x"]], (1.5, 1.0)),
    ],
)
def test_where_the_two_differ(
    official: Any,
    tmp_path: Path,
    step: dict[str, Any],
    gold: list[list[str]],
    found: list[list[str]],
    recalls: tuple[float, float],
) -> None:
    """What the grader's docstring says of the official evaluation: recall of items, theirs and ours."""
    evaluation = {"required": ["k", "v"], "unique_columns": ["k"], "eval_pipeline": {"k": TEXT, "v": step}}
    theirs, ours = both(official, tmp_path, evaluation, gold, write_table(["k", "v"], found))
    assert (theirs.recall_by_item, ours.items.recall) == recalls
