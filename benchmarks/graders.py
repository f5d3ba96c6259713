"""Every built-in grader on answers made to hang, to crash or to be executed: its worst time against its limit.

    python benchmarks/graders.py [--timeout 2]

Wall-clock seconds of one `grade`, on a task that fits the grader. Every grader has one second; `math` has `--timeout`
seconds more for what it asks math-verify, and four until a worker that was killed for the answer before is replaced.
Answers that contain code would leave a file behind if anything executed them; as a control the same code is executed
once at the end, and must leave it. Ends with exit code 1 if a grader is over its limit, raises, takes a hostile answer
for right, or executes one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.graders import GRADERS, Grade, Grader
from selfcest_env.types import Task

LIMIT_S, RESTART_S = 1.0, 4.0
MEGABYTE = 1_000_000
TABLE = 290_000  # characters: as long a table as is read
TASK = Task(
    "hostile",
    "Use 3, 7 and 9. What percent is it?",
    "-2",
    "countdown",
    aliases=("81",),
    metadata={"cells": "AB", "numbers": "3 7 9 9 9 9", "target": 24},
)
TABLE_TASK = Task(
    "hostile",
    "Which rivers?",
    "| k | v |\n| --- | --- |\n| Ulm | 100 |",
    "wide_tables",
    metadata={
        "evaluation": json.dumps(
            {
                "required": ["k", "v"],
                "unique_columns": ["k"],
                "eval_pipeline": {
                    "v": {"preprocess": ["norm_str", "extract_number"], "metric": ["number_near"], "criterion": 0.1}
                },
            }
        )
    },
)
SYMBOLIC_TASK = Task("hostile", "Simplify.", r"2\sqrt{2}", "math")


def code(sentinel: Path) -> str:
    """Python that leaves a file behind when it is evaluated."""
    return f"__import__('os').system('touch {sentinel}')"


def hostile_answers(sentinel: Path) -> Iterator[tuple[str, str]]:
    """(kind, answer): towers, deep nesting, long texts, odd characters, code. None is a right answer to anything."""
    python = code(sentinel)
    yield "tower", "9**9**9**9"
    yield "tower", "9^{9^{9^{9}}}"
    yield "tower", r"9^{9^{9^9}}\sqrt{2}"
    yield "tower", r"\sqrt{10^{10^{10}}+1}"
    yield "tower", "((((9!)!)!)!)!"
    yield "tower", r"(10^9)!+\sqrt{2}"
    yield "tower", r"\binom{10^9}{5\cdot10^8}"
    yield "tower", r"\frac{2003!}{1999!}\pi^{2003!}"
    yield "tower", r"\sum_{n=1}^{10^{12}}\frac{1}{n^2}"
    yield "tower", r"\int_0^{1}x^{x^{x^{x}}}\sin(e^{x^{x}})dx"
    yield "tower", r"(x+y+z)^{5000}"
    yield "tower", r"\lim_{x\to0}\prod_{k=1}^{99999}(1+x^k)^{k!}"
    for depth in (40, 300, 100_000):
        yield "nested", r"\frac{1}{" * depth + "2" + "}" * depth
        yield "nested", r"\boxed{" * depth + "3" + "}" * depth
        yield "nested", "(" * depth + "3" + ")" * depth
        yield "nested", "-" * depth + "3"
        yield "nested", "2^" * depth + "2"
        yield "nested", r"\sqrt{" * depth + "3" + "}" * depth
        yield "nested", r"\{" * depth + "3" + r"\}" * depth
        yield "nested", r"\boxed{" * depth
        yield "nested", r"\left(" * depth + "3"
    for piece in ("1", "9", "a", " ", ",", "{", "}", "(", "$", "-", "=", "%", "!", "1,", "a ", "a.", "0.", "\\", "\n"):
        yield "megabyte", piece * (MEGABYTE // len(piece))
    for piece in (r"\boxed{3}", r"\text{ cm}", r"\frac", " or ", "12,345,", "1 2 ", "yes ", "1/2+", r"\boxed{", "the "):
        yield "megabyte", piece * (MEGABYTE // len(piece)) + "x"
    for table in ("|", "|\n", "k|v\n", "x|1\n", "|---", "\\|", "```markdown\n", "k|", "Ulm|9\n"):
        yield "table", "k|v\n" + table * (TABLE // len(table) - 4)
    for cell in ("1", "-", "1.", ",", " ", "*", "%", "N/A "):
        yield "table", "k|v\nUlm|" + cell * (TABLE // len(cell) - 10)
    for text in (
        "٣٤٥",
        "Ⅻ",
        "½",
        "\u202e42",
        "\ud800",
        "3\x00",
        "𝟛",
        "e\u0301" * 5000,
        "\ufeff3\u200b",
        "İ" * 5000,
        "∞",
    ):
        yield "unicode", text
    yield "code", python
    yield "code", f"\\boxed{{{python}}}"
    yield "code", f"${python}$"
    yield "code", f"3 + {python}"
    yield "code", f"\\frac{{1}}{{{python}}}"
    yield "code", f"\\text{{{python}}}"
    yield "code", f"Symbol('x'); {python}"
    yield "code", f"[{python} for x in (1,)]"
    yield "code", f"(lambda: {python})()"
    yield "code", f"\\immediate\\write18{{touch {sentinel}}}"
    yield "code", f"`touch {sentinel}`; $(touch {sentinel})"
    yield "code", f"open('{sentinel}', 'w')"
    yield "code", f"{{{{ {python} }}}}"
    yield "code", f"!!python/object/apply:os.system ['touch {sentinel}']"


@dataclass(frozen=True)
class Worst:
    """The slowest answer of one grader."""

    seconds: float
    kind: str
    answer: str


def task_for(name: str) -> Task:
    """A task that a grader can judge."""
    return TABLE_TASK if name == "wide" else TASK


def graders(timeout_s: float) -> Iterator[tuple[str, Grader, Task, float]]:
    """(name, grader, task, limit in seconds) of every built-in grader."""
    for name in GRADERS:
        options = {"timeout_s": timeout_s} if name == "math" else {}
        grader = GRADERS.make(name, options, where=name)
        limit = LIMIT_S + (timeout_s + RESTART_S if name == "math" else 0.0)
        yield name, grader, task_for(name), limit
        if name == "math":
            yield "math, symbolic", grader, SYMBOLIC_TASK, limit


def measure(grader: Grader, task: Task, answers: list[tuple[str, str]]) -> tuple[Worst, list[str]]:
    """The worst time, and what went wrong."""
    grader.grade(task, "warm up")
    worst, faults = Worst(0.0, "", ""), list[str]()
    for kind, answer in answers:
        start = time.perf_counter()
        try:
            grade: Grade | None = grader.grade(task, answer)
        except Exception as error:
            grade = None
            faults.append(f"raised {type(error).__name__} for {answer[:40]!r}")
        seconds = time.perf_counter() - start
        if grade is not None and grade.correct:
            faults.append(f"took {answer[:40]!r} for right")
        if seconds > worst.seconds:
            worst = Worst(seconds, kind, answer)
    return worst, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds of math-verify for one answer")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        sentinel = Path(folder) / "s"
        answers = list(hostile_answers(sentinel))
        print(f"{len(answers)} hostile answers")
        print(f"{'grader':18} {'worst s':>8} {'limit s':>8}  its worst answer")
        for name, grader, task, limit in graders(arguments.timeout):
            worst, faults = measure(grader, task, answers)
            shown = f"{worst.kind}, {len(worst.answer)} characters: {worst.answer[:30]!r}"
            print(f"{name:18} {worst.seconds:8.3f} {limit:8.1f}  {shown}", flush=True)
            if worst.seconds > limit:
                faults.append("over its limit")
            if sentinel.exists():
                faults.append("an answer was executed")
                sentinel.unlink()
            for fault in faults:
                print(f"    FAULT: {fault}")
            failed |= bool(faults)
        subprocess.run([sys.executable, "-c", code(sentinel)], check=True)
        print(f"control, the code executed on purpose: {'leaves its file' if sentinel.exists() else 'FAULT: no file'}")
        failed |= not sentinel.exists()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
