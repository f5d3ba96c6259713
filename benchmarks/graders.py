"""Measure the worst time of every built-in grader on answers that are made to hang, to crash or to be executed.

    python benchmarks/graders.py [--timeout 2]
    python benchmarks/graders.py --odd

Times are wall-clock seconds of one `grade`, on a task that fits the grader. The limit is one second. `math` has
`--timeout` seconds more for math-verify, and four until the replacement of a worker that the answer before killed.
Answers with code would leave a file behind if anything executed them. As a control, the same code is executed once at
the end and must leave the file. The exit code is 1 if a grader exceeds its limit, raises, accepts a hostile answer, or
executes one.

`--odd` grades right and wrong answers in odd forms instead, and prints tables of the disagreements. The labels in
`odd_forms.json` are written by hand, for forms such as `half of {}`. A form has one label for every truth that is
inserted, so the labels do not depend on any grader.
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

LIMIT_S = 1.0
RESTART_S = 4.0
MEGABYTE = 1_000_000
TABLE = 290_000  # characters, just below the limit of the grader `wide`
TASK = Task(
    "hostile",
    "Use 3, 7 and 9. What percent is it?",
    "-2",
    "countdown",
    aliases=("81",),
    metadata={"cells": "AB", "numbers": "3 7 9 9 9 9", "target": 24},
)
LENIENT_NUMBER = "number, not strict"
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
    """Return Python code that leaves a file behind when it is evaluated."""
    return f"__import__('os').system('touch {sentinel}')"


def hostile_answers(sentinel: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of wrong answers: towers, deep nesting, long texts, odd characters, code."""
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
    """Return a task that a grader can judge."""
    return TABLE_TASK if name == "wide" else TASK


def graders(timeout_s: float) -> Iterator[tuple[str, Grader, Task, float]]:
    """Yield the name, the grader, a task and the limit in seconds of every built-in grader."""
    for name in GRADERS:
        options = {"timeout_s": timeout_s} if name == "math" else {}
        grader = GRADERS.make(name, options, where=name)
        limit = LIMIT_S + (timeout_s + RESTART_S if name == "math" else 0.0)
        yield name, grader, task_for(name), limit
        if name == "math":
            yield "math, symbolic", grader, SYMBOLIC_TASK, limit


def measure(grader: Grader, task: Task, answers: list[tuple[str, str]]) -> tuple[Worst, list[str]]:
    """Return the worst time and a list of faults."""
    grader.grade(task, "warm up")
    worst = Worst(0.0, "", "")
    faults: list[str] = []
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


# `odd_forms.json` has for each grader right and wrong forms of an answer, in which `{}` stands for the truth. A form
# may have it twice, and a form of a puzzle may also have the target. The truths follow.

FORMS: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "odd_forms.json").read_text())
NUMBERS = ("2", "18", "250", "1024")
QUESTION = (
    "Tom, Mary and Ann have two brothers. Each of the five friends sells twice as many apples, coins, eggs and marbles "
    "as before. They make some dollars more every week than Ben. How many miles do they walk, and how many are left?"
)
MATHEMATICS = (
    *("3", "14", r"\frac{1}{2}", r"-\frac{7}{3}", "0.25", "(1,2)", r"\{1,2\}", "[0,1)", "1,2,5", r"2\sqrt{3}"),
    *("x<5", r"\text{Monday}", "(3,-4)", r"\frac{3}{8}", "17", "-6", "[2,9]", "2,3", "2^{10}", "120"),
    *("y=2x+8", "6-5i", r"\frac{\pi}{3}", "0.375", r"\text{(C)}", r"\text{even}", "(0,4]", "-1", "1000", r"16\pi"),
)
WORDS = (
    *("A", "B", "5", "-5", "C#", "C++", "Paris", "New York", "yes", "no", "Vitamin A", "U.S.", "1.5", "1/2", "50%"),
    *("The Beatles", "Ann Lee", "1990-91", "O'Brien", "St. John", "river", "May 5, 1999", "Ulm", "C", "AT&T", "Rhine"),
    *("blue", "The Hague", "seven", "Ångström"),
)
# Pairs of a truth and a wrong answer that differ by a symbol.
WRONG_SYMBOLS = (
    ("5", "-5"), ("-5", "5"), ("C#", "C++"), ("C++", "C"), ("5", "5%"), ("15", "1.5"), ("12", "1/2"), ("130", "1:30"),
    ("Vitamin A", "vitamin"), ("A+", "A"), ("5", "5!"), ("25", "2^5"), ("F", "F#"), ("B+", "B-"), ("24", "2*4"),
    ("non-fiction", "fiction"), ("AT&T", "ATT"), ("~5", "5"), ("<5", "5"), (">5", "<5"), ("5=6", "56"), ("a/b", "ab"),
)  # fmt: skip
CELLS = ("100", "42", "7", "1950", "860", "33", "12", "9999", "205", "61")
PUZZLES = (
    ("6*4", "4 6", 24),
    ("(9-3)*4", "3 4 9", 24),
    ("8/(3-1)", "1 3 8", 4),
    ("7+9-2", "2 7 9", 14),
    ("(5+7)/(6-2)", "2 5 6 7", 3),
    ("8-3*2", "2 3 8", 2),
)


@dataclass(frozen=True)
class OddAnswer:
    """An answer in an odd form, with the label of its form."""

    grader: str
    task: Task
    form: str
    answer: str
    right: bool


def odd_answers() -> Iterator[OddAnswer]:
    """Yield all forms of all graders with all truths, always in the same order."""
    for grader, tasks in _odd_tasks().items():
        forms = FORMS["number" if grader == LENIENT_NUMBER else grader]
        for label in ("right", "wrong"):
            for form in forms[label]:
                shown = f"| k | v |\n| --- | --- |\n| Ulm | {form} |" if grader == "wide" else form
                for task, values in tasks:
                    yield OddAnswer(grader, task, form, shown.format(*values), label == "right")
    for truth, answer in WRONG_SYMBOLS:
        yield OddAnswer("question_answer", Task("odd", "Which one?", truth, "odd"), answer, answer, False)


def _odd_tasks() -> dict[str, list[tuple[Task, tuple[str, ...]]]]:
    """Return for each grader its tasks, each with the values of the fields of a form."""

    def plain(values: tuple[str, ...], prompt: str = "Which one?") -> list[tuple[Task, tuple[str, ...]]]:
        return [(Task("odd", prompt, value, "odd"), (value,) * 4) for value in values]

    cells: list[tuple[Task, tuple[str, ...]]] = []
    for value in CELLS:
        table = TABLE_TASK.answer.replace("100", value)
        metadata = {"evaluation": str(TABLE_TASK.metadata["evaluation"]).replace("0.1", "0.0")}
        cells.append((Task("odd", "Which?", table, "wide_tables", metadata=metadata), (value,) * 4))
    puzzles: list[tuple[Task, tuple[str, ...]]] = []
    for solution, numbers, target in PUZZLES:
        metadata_of_puzzle: dict[str, str | int | float | bool] = {"numbers": numbers, "target": target}
        task = Task("odd", "Make it.", solution, "countdown", metadata=metadata_of_puzzle)
        puzzles.append((task, (solution, str(target))))
    return {
        "number": plain(NUMBERS, QUESTION),
        LENIENT_NUMBER: plain(NUMBERS, QUESTION),
        "math": plain(MATHEMATICS),
        "question_answer": plain(WORDS),
        "wide": cells,
        "countdown": puzzles,
    }


def odd_graders(symbolic: bool) -> dict[str, Grader]:
    """Return the graders with their strict options, as in training, and `number` with its defaults."""
    options: dict[str, dict[str, object]] = {
        "number": {"strict": True},
        "math": {"symbolic": symbolic},
        "question_answer": {"strict": True, "extract_answer": True},
        "wide": {"strict": True},
    }
    names = ("number", "math", "question_answer", "wide", "countdown")
    graders_by_name = {name: GRADERS.make(name, options.get(name, {}), where=name) for name in names}
    return {**graders_by_name, LENIENT_NUMBER: GRADERS.make("number", {}, where="number")}


def disagreements(symbolic: bool) -> list[OddAnswer]:
    """Return the odd answers that a grader judges against their label."""
    by_name = odd_graders(symbolic)
    return [odd for odd in odd_answers() if by_name[odd.grader].grade(odd.task, odd.answer).correct is not odd.right]


def row_start(odd: OddAnswer) -> str:
    """Return the first cells of a row of the page: the grader, the form and its label."""
    form = json.dumps(odd.form, ensure_ascii=False)[1:-1].replace("\\\\", "\\").replace("|", "\\|")
    return f"| {odd.grader} | `` {form} `` | {'right' if odd.right else 'wrong'} |"


HEAD = """# Odd answers

*This page is generated: `python benchmarks/graders.py --odd`.*

Every form of an answer that a grader judges against its label, for users who train with a grader. The forms and their
labels stand in `benchmarks/odd_forms.json`; no grader had a part in them. The graders have the options for training
(`strict`, `extract_answer`). [Data sets](../data.md#odd-answers) says what follows.
"""


def print_disagreements() -> int:
    """Print the page: how many answers each grader judged, and a row for every form judged against its label."""
    answers = list(odd_answers())
    wrong_verdicts = disagreements(symbolic=True)
    print(HEAD)
    print("| grader | right answers | refused | wrong answers | accepted |\n|---|---|---|---|---|")
    for grader in _odd_tasks():
        counts: list[int] = []
        for right in (True, False):
            for group in (answers, wrong_verdicts):
                counts.append(sum(odd.grader == grader and odd.right is right for odd in group))
        print(f"| {grader} | {' | '.join(map(str, counts))} |")
    by_row: dict[str, list[OddAnswer]] = {}
    for odd in wrong_verdicts:
        by_row.setdefault(row_start(odd), []).append(odd)
    print("\n| grader | form, with `{}` for the truth | is | answers judged otherwise | truth of the first |")
    print("|---|---|---|---|---|")
    for row, odds in by_row.items():
        truth = odds[0].task.answer.split("\n")[-1].strip("| ")
        print(f"{row} {len(odds)} | `{truth}` |")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds of math-verify for one answer")
    parser.add_argument("--odd", action="store_true", help="grade right and wrong answers in odd forms instead")
    arguments = parser.parse_args()
    if arguments.odd:
        return print_disagreements()
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
