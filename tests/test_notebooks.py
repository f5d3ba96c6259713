"""The notebooks of the documentation run from their first cell to their last, in plain Python."""

from __future__ import annotations

import ast
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run_cells(notebook: Path, names: dict[str, Any]) -> list[object]:
    """Run the cells of code; return the value of each cell that ends in an expression, which a notebook shows."""
    shown = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{notebook.name}, {cell['id']}")
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, f"{notebook.name}, {cell['id']}", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), f"{notebook.name}, {cell['id']}", "eval"), names))
    return shown


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of a fresh module, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    module = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    yield module.__dict__
    torch.set_num_threads(threads)


def test_these_are_the_notebooks_and_they_store_no_output() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["algorithm", "credit", "training"]
    for path in NOTEBOOKS:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
        assert not any(cell.get("outputs") for cell in data["cells"]), path.name


@pytest.mark.slow
def test_an_algorithm_learns(names: dict[str, Any]) -> None:
    run_cells(NOTEBOOKS[0], names)
    assert names["best"].team_return == 1
    assert names["success"] > 0.9


@pytest.mark.slow
def test_a_credit_scheme_is_checked_and_judged(names: dict[str, Any]) -> None:
    run_cells(NOTEBOOKS[1], names)
    rloo, half, whole = names["report"].cells
    assert rloo.bias.value < 1e-9
    assert half.bias.value > 0.01
    assert whole.bias.value < 1e-9
    assert names["report"].broken == ()


@pytest.mark.slow
def test_a_policy_answers_and_is_trained(names: dict[str, Any]) -> None:
    tree, _ = (value for value in run_cells(NOTEBOOKS[2], names) if value is not None)
    assert "<svg" in tree._repr_html_()  # type: ignore[attr-defined]
    assert {price: record.cost.clones for price, record in names["answers"].items()} == {3: 3, 7: 0}
    assert len(names["episodes"]) == 16
