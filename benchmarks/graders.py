"""Every built-in grader on answers made to hang, to crash or to be executed: its worst time against its limit.

    python benchmarks/graders.py [--timeout 2]
    python benchmarks/graders.py --odd

Wall-clock seconds of one `grade`, on a task that fits the grader. Every grader has one second; `math` has `--timeout`
seconds more for what it asks math-verify, and four until a worker that was killed for the answer before is replaced.
Answers that contain code would leave a file behind if anything executed them; as a control the same code is executed
once at the end, and must leave it. Ends with exit code 1 if a grader is over its limit, raises, takes a hostile answer
for right, or executes one.

`--odd` grades 2,000 right and 2,000 wrong answers in odd forms instead, and prints a table of the disagreements. The
labels are written by hand, beside forms such as `half of {}`: a form has one label for every truth that it is put
around, so that no grader has a part in it.
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


# Ways to write an answer, in which `{}` is the truth; each list has the label that a reader would give.

NUMBERS = (
    *("2", "3", "7", "8", "11", "12", "14", "17", "18", "19", "21", "24", "29", "35", "42", "48", "56", "64", "75"),
    *("81", "96", "120", "250", "365", "1024", "27", "33", "45", "60", "72", "144", "500", "640"),
)
RIGHT_NUMBERS = (
    "{}", "${}$", "$\\boxed{{{}}}$", "So it is **{}**.", "She makes {} dollars every day.", "The answer is {}.",
    "Half of it is gone, so {} are left.", "{} km/h", "\\({}\\)", "It is not less; it is {}.", "{} minutes!", "{}.00",
    "<answer>{}</answer>", "Twice a week he runs, {} miles in all", "The result – {} apples", "+{}", "0{}", "{}e0",
    "{} × 10^0", "(= {})", "Tom, who is not tall, has {} marbles", "{} per day", "exactly {}", "x = {}", "{}cm",
    "{} more than Tom has", "It takes over {} weeks", "{} times", "€{}", "{} (in words, too)", "That's it: {}!",
    "the {}th", "{}-year-old", "In total {}, no more.",
)  # fmt: skip
WRONG_NUMBERS = (
    "-{}", "–{}", "minus {}", "not {}", "half of {}", "{}²", "√{}", "{} million", "less than {}", "at least {}",
    "{} or nineteen", "twice {}", "{}%", "{}!", "1/{}", "{}k", "negative {}", "a third of {}", "{} and a half", "{}x",
    "one in {}", "{}½", "~~{}~~", "more than {}", "isn't {}", "{} squared", "{} dozen", "the square root of {}",
    "ten times {}", "{} or more", "{}e3", "anything but {}", "{} is wrong", "{} point five", "0.0{}", "{}0", "± {}",
    "I got {}, a wrong result", "the day before the {}th", "{} fewer than ten", "the answer is opposite in sign to {}",
)  # fmt: skip
MATHEMATICS = (
    *("3", "14", r"\frac{1}{2}", r"-\frac{7}{3}", "0.25", "(1,2)", r"\{1,2\}", "[0,1)", "1,2,5", r"2\sqrt{3}"),
    *("x<5", r"\text{Monday}", "(3,-4)", r"\frac{3}{8}", "17", "-6", "[2,9]", "2,3", "2^{10}", "120"),
    *("y=2x+8", "6-5i", r"\frac{\pi}{3}", "0.375", r"\text{(C)}", r"\text{even}", "(0,4]", "-1", "1000", r"16\pi"),
)
RIGHT_MATHEMATICS = (
    "{}", "${}$", "$${}$$", "\\({}\\)", "\\[{}\\]", "\\boxed{{{}}}", "\\fbox{{{}}}", "The answer is ${}$.",
    "**Answer:** {}",
    "First \\boxed{{77}}, no: \\boxed{{{}}}", "**{}**", " {} ", "{}.", "So $\\boxed{{ {} }}$ it is", "Answer: \\({}\\)",
)  # fmt: skip
WRONG_MATHEMATICS = (
    "not {}", "\\not= {}", "\\neq {}", "{} \\neq x", "99 = {}", "{} \\approx 99", "{}, 99", "{} or 99", "99{}", "2({})",
    "\\boxed{{{}}} \\boxed{{99}}", "\\{{{}, 99\\}}", "({}, 99)", "{} + 1", "the answer is {} or not",
)  # fmt: skip
WORDS = (
    *("A", "B", "5", "-5", "C#", "C++", "Paris", "New York", "yes", "no", "Vitamin A", "U.S.", "1.5", "1/2", "50%"),
    *("The Beatles", "Ann Lee", "1990-91", "O'Brien", "St. John", "river", "May 5, 1999", "Ulm", "C", "AT&T", "Rhine"),
    *("blue", "The Hague", "seven", "Ångström"),
)
RIGHT_WORDS = (
    "{}", "{}.", " {} ", "\\boxed{{{}}}", "\\boxed{{\\text{{{}}}}}", "The answer is {}.", "Answer: {}", "**{}**",
    '"{}"',
    "My final answer is: {}", "So $\\boxed{{{}}}$.", "({})", "{},", "The answer is **{}**.", "'{}'",
)  # fmt: skip
WRONG_WORDS = (
    "...", "the", "not {}", "{} or London", "un{}", "The answer is not {}", "\\boxed{{London}} {}", "{}{}", "{} {}",
    "London", "no {} at all", "neither {} nor London", "{} and London", "anti-{}", "The answer is {} or London.",
)  # fmt: skip
# Pairs of a truth and a wrong answer that differ by a symbol.
WRONG_SYMBOLS = (
    ("5", "-5"), ("-5", "5"), ("C#", "C++"), ("C++", "C"), ("5", "5%"), ("15", "1.5"), ("12", "1/2"), ("130", "1:30"),
    ("Vitamin A", "vitamin"), ("A+", "A"), ("5", "5!"), ("25", "2^5"), ("F", "F#"), ("B+", "B-"), ("24", "2*4"),
    ("non-fiction", "fiction"), ("AT&T", "ATT"), ("~5", "5"), ("<5", "5"), (">5", "<5"), ("5=6", "56"), ("a/b", "ab"),
)  # fmt: skip
CELLS = ("100", "42", "7", "1950", "860", "33", "12", "9999", "205", "61")
RIGHT_CELLS = ("{}", "{} people", "**{}**", "{}.0", "about {}", " {} ", "+{}", "{} in all", "= {}", "{} m")
WRONG_CELLS = (
    "{} or 5", "{} million", "–{}", "-{}", "{}%", "not {}", "{}-9000", "half of {}", "{}k", "less than {}",
    "{} squared", "5 or {}", "{}/2", "", "N/A", "minus {}", "twice {}", "{} thousand", "≠ {}", "{} and a half",
)  # fmt: skip
PUZZLES = (("6*4", "4 6", 24), ("(9-3)*4", "3 4 9", 24), ("8/(3-1)", "1 3 8", 4), ("7+9-2", "2 7 9", 14))
RIGHT_PUZZLES = (
    "{}",
    "{} = {}",
    "{1} = {0}",
    "\\boxed{{{}}}",
    "${}$",
    "({})",
    "The answer is {}",
    "--({})",
    "+({})",
    "{}.",
)
WRONG_PUZZLES = (
    "{1}", "{}%", "{}*100%", "{}+0", "({})^1", "{} = 99", "-({})", "{}*1", "{} or 1+1", "not {}", "({})!", "{}/100%",
)  # fmt: skip


@dataclass(frozen=True)
class OddAnswer:
    """An answer in an odd form, with the label of its form."""

    grader: str
    task: Task
    form: str
    answer: str
    right: bool


def odd_answers() -> list[OddAnswer]:
    """2,000 right and 2,000 wrong answers, spread evenly over all forms; always the same ones."""
    by_label: dict[bool, list[OddAnswer]] = {True: [], False: []}
    for grader, tasks, right, wrong in _odd_families():
        for label, forms in ((True, right), (False, wrong)):
            for form in forms:
                for task, values in tasks:
                    # A form may name the truth twice, and of a puzzle also the target; one that names it once takes it.
                    by_label[label].append(OddAnswer(grader, task, form, form.format(*values), label))
    return [answer for label in (True, False) for answer in _spread(by_label[label], 2000)]


def _odd_families() -> Iterator[tuple[str, list[tuple[Task, tuple[str, ...]]], tuple[str, ...], tuple[str, ...]]]:
    def plain(values: tuple[str, ...], prompt: str = "Which one?") -> list[tuple[Task, tuple[str, ...]]]:
        return [(Task("odd", prompt, value, "odd"), (value, value)) for value in values]

    yield "number", plain(NUMBERS), RIGHT_NUMBERS, WRONG_NUMBERS
    yield "math", plain(MATHEMATICS), RIGHT_MATHEMATICS, WRONG_MATHEMATICS
    yield "question_answer", plain(WORDS), RIGHT_WORDS, WRONG_WORDS
    for truth, answer in WRONG_SYMBOLS:
        yield "question_answer", plain((truth,)), (), (answer,)
    cells = []
    for value in CELLS:
        table = TABLE_TASK.answer.replace("100", value)
        metadata = {"evaluation": str(TABLE_TASK.metadata["evaluation"]).replace("0.1", "0.0")}
        cells.append((Task("odd", "Which?", table, "wide_tables", metadata=metadata), (value, value)))
    row = "| k | v |\n| --- | --- |\n| Ulm | "
    right_cells = tuple(f"{row}{form} |" for form in RIGHT_CELLS)
    wrong_cells = tuple(f"{row}{form} |" for form in WRONG_CELLS)
    yield "wide", cells, right_cells, wrong_cells
    puzzles = []
    for solution, numbers, target in PUZZLES:
        metadata_of_puzzle: dict[str, str | int | float | bool] = {"numbers": numbers, "target": target}
        puzzles.append(
            (Task("odd", "Make it.", solution, "countdown", metadata=metadata_of_puzzle), (solution, str(target)))
        )
    yield "countdown", puzzles, RIGHT_PUZZLES, WRONG_PUZZLES


def _spread(answers: list[OddAnswer], count: int) -> list[OddAnswer]:
    """So many of them, at even distances."""
    if len(answers) < count:
        raise ValueError(f"{len(answers)} answers; expected at least {count}: add forms or truths")
    return [answers[index * len(answers) // count] for index in range(count)]


def odd_graders(symbolic: bool) -> dict[str, Grader]:
    """The graders as they train: strict where they can be."""
    options: dict[str, dict[str, object]] = {
        "math": {"symbolic": symbolic},
        "question_answer": {"strict": True, "extract_answer": True},
        "wide": {"strict": True},
    }
    names = ("number", "math", "question_answer", "wide", "countdown")
    return {name: GRADERS.make(name, options.get(name, {}), where=name) for name in names}


def disagreements(symbolic: bool) -> list[OddAnswer]:
    """The odd answers of which a grader says something else than their label."""
    by_name = odd_graders(symbolic)
    return [odd for odd in odd_answers() if by_name[odd.grader].grade(odd.task, odd.answer).correct is not odd.right]


def print_disagreements() -> int:
    """Prints a table with a row for every form that a grader judges against its label, with one of its answers."""
    answers = odd_answers()
    by_form: dict[tuple[str, str], list[OddAnswer]] = {}
    for odd in disagreements(symbolic=True):
        by_form.setdefault((odd.grader, odd.form), []).append(odd)
    count = sum(map(len, by_form.values()))
    right = sum(odd.right for odd in answers)
    print(f"{right} right and {len(answers) - right} wrong answers, {count} disagreements")
    print("\n| grader | truth | answer | is | graded | answers of this form |\n|---|---|---|---|---|---|")
    for (grader, _), odds in by_form.items():
        odd = odds[0]
        truth = odd.task.answer.split("\n")[-1].strip("| ")
        answer = odd.answer.split("\n")[-1].strip("| ")
        label, verdict = ("right", "wrong") if odd.right else ("wrong", "right")
        print(f"| `{grader}` | `{truth}` | `{answer}` | {label} | {verdict} | {len(odds)} |")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds of math-verify for one answer")
    parser.add_argument("--odd", action="store_true", help="right and wrong answers in odd forms instead")
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
