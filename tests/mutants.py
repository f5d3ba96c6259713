"""Mutation tests of the core's decisions, on demand: is there a test that fails when one line is wrong?

    python tests/mutants.py [--count 40] [--seed 0] [MODULE ...]

Draws small changes of the modules below (a comparison, a sign, a constant, `and` for `or`, `max` for `min`, a default),
makes each in a copy of the repository, runs that module's tests there and prints the diff with what became of it. A
survivor is a question, not a fault: some mutants compute the same, as `<=` in place of `<` where equality cannot be.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_CREDIT = (
    "tests/training/test_credit.py",
    "tests/training/test_credit_schemes.py",
    "tests/training/test_credit_conformance.py",
)
_KERNEL = ("tests/env/test_kernel.py", "tests/env/test_replay.py", "tests/env/test_kernel_random.py")
# The tests of each module, quickest first.
TESTS: dict[str, tuple[str, ...]] = {
    "selfcest_env/budget.py": ("tests/env/test_budget.py", "tests/env/test_budget_bugs.py", "tests/env/test_kernel.py"),
    "selfcest_env/grants.py": ("tests/env/test_budget_bugs.py", *_KERNEL),
    "selfcest_env/kernel.py": _KERNEL,
    "selfcest_env/counterfactual.py": ("tests/env/test_replay.py", "tests/agents/test_replay.py"),
    "selfcest_env/graders/wide.py": ("tests/env/test_graders_wide.py",),
    "selfcest_env/symbolic/transition.py": ("tests/env/test_symbolic_batch.py", "tests/env/test_symbolic_twin.py"),
    "training/selfcest_training/learner/batch.py": (
        "tests/training/test_batch_and_losses.py",
        "tests/training/test_fan_out.py",
    ),
    **{
        f"training/selfcest_training/credit/{name}.py": _CREDIT
        for name in ("base", "counterfactual", "difference", "gated", "grpo", "per_role", "rloo", "shapley")
    },
    "training/selfcest_eval/stats/statistics.py": ("tests/eval/test_study_statistics.py",),
}

_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutants(source: str) -> list[str]:
    """The source with each of the small changes that are known, one at a time."""
    data, starts, found = source.encode(), [0], []
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _decisions(ast.parse(source)):
        for changed in _changes(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            # In parentheses, so that an operator which binds less tightly changes nothing else.
            text = f"({ast.unparse(changed)})" if isinstance(changed, ast.expr) else ast.unparse(changed)
            found.append((data[:begin] + text.encode() + data[end:]).decode())
    return found


def _decisions(node: ast.AST) -> Iterator[Any]:
    """Statements and expressions that compute; what is said about types, asserted or told to the user is left alone."""
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _decisions(child)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    def changed(**fields: object) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in _OPERATORS.get(type(op), ()):
                    yield changed(ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            for other in _OPERATORS.get(type(op), ()):
                yield changed(op=other())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield changed(value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield changed(value=value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield changed(func=ast.Name(id=_FUNCTIONS[name]))
        case _:
            pass


class Copy:
    """The repository in a folder of its own, where one module at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def passes(self, module: str, timeout: float | None = None) -> bool | None:
        """Whether the module's tests pass; `None` if they did not end in `timeout` seconds."""
        paths = os.pathsep.join(str(self.folder / path) for path in (".", "agents", "training"))
        settings = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS[module]]
        try:
            ended = subprocess.run(
                command, cwd=self.folder, env=os.environ | settings, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return None
        if ended.returncode not in (0, 1, 2):  # passed, failed, could not be collected
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="paths; all that are listed here if left out")
    parser.add_argument("--count", type=int, default=40, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    unknown = [module for module in options.modules if module not in TESTS]
    if unknown:
        parser.error(f"no tests are listed for {unknown[0]}; known: {', '.join(TESTS)}")

    sources = {module: (ROOT / module).read_text() for module in options.modules or TESTS}
    every = [(module, mutant) for module, source in sources.items() for mutant in mutants(source)]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    print(f"seed {options.seed}: {len(drawn)} of {len(every)} mutants of {len(sources)} modules", flush=True)
    limits: dict[str, float] = {}
    survived = 0
    with tempfile.TemporaryDirectory(prefix="selfcest-mutants-") as folder:
        repository = Copy(Path(folder))
        for number, (module, mutant) in enumerate(sorted(drawn), 1):
            if module not in limits:
                started = time.monotonic()
                if not repository.passes(module):
                    raise SystemExit(f"the tests of {module} fail without a change; mend them first")
                limits[module] = 30 + 5 * (time.monotonic() - started)
            (repository.folder / module).write_text(mutant)
            passed = repository.passes(module, limits[module])
            (repository.folder / module).write_text(sources[module])
            survived += passed is True
            verdict = "killed by the clock" if passed is None else "SURVIVED" if passed else "killed"
            print(f"\n{number}: {verdict}: {module}")
            lines = difflib.unified_diff(sources[module].splitlines(), mutant.splitlines(), lineterm="", n=1)
            print(*list(lines)[2:], sep="\n", flush=True)
    print(f"\nkilled {len(drawn) - survived} of {len(drawn)}, survived {survived} (seed {options.seed})")


if __name__ == "__main__":
    main()
