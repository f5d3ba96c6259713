"""Where delegating pays, and when a policy does it: the page of both experiments, from what their runs left behind.

    python benchmarks/delegation.py                                      # prints docs/delegation.md from docs/evidence/
    python benchmarks/delegation.py --rerun when/delegating/seed0       # trains and plays one cell again
    python benchmarks/delegation.py --rerun long_ledgers/reading/seed0  # in 3 to 7 minutes of one idle core

A cell is an arm of an experiment with one seed. It leaves a small JSON: digest of its config, commit, CPU seconds of
training, figures of every size, learning curves. The page is a function of these files alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from selfcest_training.config_file import read_config
from selfcest_training.evaluation import statistics
from selfcest_training.evaluation.decision import Choice, choices, judge, means
from selfcest_training.evaluation.results import Result, read_results

ROOT = Path(__file__).parents[1]
EVIDENCE, CONFIGS = ROOT / "docs" / "evidence", ROOT / "training" / "configs"
EXPERIMENTS = ("long_ledgers", "when")
STUDIES = {"when": CONFIGS / "cpu" / "when_frontier.yaml"}
COSTS = (
    "total_tokens",
    "generated_tokens",
    "critical_path_tokens",
    "peak_context",
    "kv_token_steps",
    "billed_tokens",
)
MISSING = "—"  # of a cell that was run before this was measured
CURVE_POINTS = 40
LEARNED = 0.9  # the accuracy on sizes of training below which a cell is no evidence on others

Cell = Mapping[str, Any]


# One cell


def rerun(name: str) -> Path:
    """Train, play and store one cell. Returns its file."""
    experiment, arm, seed = [*name.split("/"), "", ""][:3]
    if experiment not in EXPERIMENTS or not seed.removeprefix("seed").isdecimal():
        known = ", ".join(EXPERIMENTS)
        raise SystemExit(f"--rerun is {name!r}; expected EXPERIMENT/ARM/seedN with an experiment of {known}")
    arms = read_config(CONFIGS / f"{experiment}.yaml")["arms"]
    if arm not in arms:
        raise SystemExit(f"--rerun is {name!r}, and the arms of {experiment}.yaml are {', '.join(arms)}")
    number, label = int(seed.removeprefix("seed")), name.replace("/", "_")
    folder = Path("runs") / label
    folder.mkdir(parents=True, exist_ok=True)
    alone = folder / "cell.yaml"
    alone.write_text(config_of(experiment, arm), encoding="utf-8")
    options = [f"seeds=[{number}]", f"name={label}"]
    _selfcest("train", "-c", str(alone), "--resume", "workers=1", *options)
    job = folder / arm / seed
    cell: dict[str, Any] = {
        "experiment": experiment,
        "arm": arm,
        "seed": number,
        "config": digest_of(experiment, arm),
        "commit": _git("rev-parse", "HEAD")
        + (" and changes" if _git("status", "--porcelain", "--untracked-files=no") else ""),
        **_training(job),
    }
    if experiment in STUDIES:
        weights = [
            f"strategies.{when}{choice}.policy={job}/{model}"
            for when, model in (("before", "warmstart_model"), ("after", "model"))
            for choice in ("", "_always", "_never")
        ]
        _selfcest("evaluate", "-c", str(STUDIES[experiment]), "--resume", *options, *weights)
        played = Path("studies") / label / "results.jsonl"
        cell["decisions"], cell["errorless"] = _decisions(played), _errorless(played)
    else:
        played = job / "evaluation" / "results.jsonl"
        cell["sizes"], cell["errorless"] = _figures(read_results(played, whole=True)), _errorless(played)
    file = EVIDENCE / f"{label}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")
    return file


def _selfcest(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "selfcest_training", *arguments], check=True)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def config_of(experiment: str, arm: str) -> str:
    """The config of one arm alone, as YAML."""
    data = read_config(CONFIGS / f"{experiment}.yaml")
    return yaml.safe_dump({**data, "arms": {arm: data["arms"][arm]}})


def digest_of(experiment: str, arm: str) -> str:
    """Of all that decides what a cell is, apart from its seed and the code."""
    study = yaml.safe_dump(read_config(STUDIES[experiment])) if experiment in STUDIES else ""
    return hashlib.blake2b((config_of(experiment, arm) + study).encode(), digest_size=8).hexdigest()


def _training(folder: Path) -> dict[str, Any]:
    """What a job used, and its curves, thinned: loss of the warm start, return and tokens of RL."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    keys = {"warmstart": ("loss",), "rl": ("return", "total_tokens", "clones")}
    curves = {}
    for stage, names in keys.items():
        found = [row for row in rows if row["stage"] == stage]
        thinned = found[:: max(1, len(found) // CURVE_POINTS)]
        if thinned:
            curves[stage] = {name: [round(row[name], 4) for row in thinned] for name in ("compute_tokens", *names)}
    return {
        "cpu_seconds": round(rows[-1]["cpu_seconds"], 1),
        "compute_tokens": int(rows[-1]["compute_tokens"]),
        "curves": curves,
    }


def _figures(results: Iterable[Result]) -> dict[str, Any]:
    """By size: accuracy and mean costs."""
    sizes: dict[str, list[Result]] = {}
    for result in results:
        sizes.setdefault(result.place.size, []).append(result)
    return {
        size: {
            "n": len(found),
            "shift": found[0].place.shift,
            "accuracy": round(mean(result.grade.correct for result in found), 4),
            **{cost: round(mean(getattr(result.episodes[0].cost, cost) for result in found), 1) for cost in COSTS},
        }
        for size, found in sizes.items()
    }


def _errorless(file: Path) -> dict[str, Any]:
    """By size and style: mean costs of errorless players, each instance once, whatever strategies they stand beside.

    `n` of the instances could be played so; `lifted` of these needed limits lifted.
    """
    sizes: dict[str, dict[str, dict[str, Result]]] = {}
    for result in read_results(file, experts=True):
        place = result.place
        if place.style is not None:
            sizes.setdefault(place.size, {}).setdefault(str(place.style), {})[place.task_id] = result
    return {
        size: {style: _expert(list(found.values())) for style, found in styles.items()}
        for size, styles in sizes.items()
    }


def _expert(results: Sequence[Result]) -> dict[str, float]:
    played = [result for result in results if result.costs is not None]
    means = {cost: round(mean((result.costs or {})[cost] for result in played), 1) for cost in COSTS if played}
    return {"n": len(played), "lifted": sum(bool(result.lifted) for result in played), **means}


def _decisions(file: Path) -> dict[str, Any]:
    """Before and after RL: by size what the policy and both forced choices did, and what its choices were worth."""
    results, found = list(read_results(file, whole=True)), {}
    sizes = list(dict.fromkeys(result.place.size for result in results))
    for when in ("before", "after"):
        played: dict[str, list[Choice]] = {}
        for size in sizes:
            here = [result for result in results if result.place.size == size]
            played[size] = choices(here, when, f"{when}_always", f"{when}_never")
        everything = [choice for part in played.values() for choice in part]
        judged = asdict(judge(everything))
        judged["threshold"] = None if math.isinf(judged["threshold"]) else judged["threshold"]
        ways = ("free", "always", "never")
        found[when] = {
            "n": len(everything),
            **judged,
            "sizes": {
                size: {way: asdict(means([getattr(choice, way) for choice in part])) for way in ways}
                for size, part in played.items()
            },
        }
    return found


# The page


def stored() -> tuple[list[Cell], list[Cell]]:
    """All cells, and the log of tuning runs."""
    files = sorted(EVIDENCE.glob("*_seed*.json"), key=lambda file: (len(file.stem), file.stem))
    tuning: list[Cell] = json.loads((EVIDENCE / "tuning.json").read_text(encoding="utf-8"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files], tuning


def page(cells: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """`docs/delegation.md`."""
    parts = [HEAD]
    for experiment, section in (("long_ledgers", _ledgers), ("when", _when)):
        found = [cell for cell in cells if cell["experiment"] == experiment]
        if found:
            parts += [section(found), _provenance(found)]
    lines = [TUNING, "", "| experiment | arm | seed | what was tried | what came out | CPU-s |", "|---" * 6 + "|"]
    columns = ("experiment", "arm", "seed", "tried", "outcome", "cpu_seconds")
    lines += ["| " + " | ".join(str(run[column]) for column in columns) + " |" for run in tuning]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _provenance(cells: Sequence[Cell]) -> str:
    lines = ["| cell | config | commit | compute, M tokens | CPU-s of training |", "|---|---|---|---|---|"]
    for cell in cells:
        name, compute = f"{cell['experiment']}/{cell['arm']}/seed{cell['seed']}", cell["compute_tokens"] / 1e6
        lines.append(
            f"| {name} | `{cell['config']}` | `{cell['commit'][:7]}` | {compute:.2f} | {cell['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


def over_seeds(values: Sequence[float], digits: int = 2) -> str:
    """The mean with its 95 % interval over seeds; the values themselves stand behind it."""
    found = statistics.over_seeds(values)
    half = "" if math.isnan(found.high) else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f}{half}"


def measured(values: Sequence[float | None], digits: int = 0) -> str:
    """`over_seeds`, or that a seed lacks it."""
    there = [value for value in values if value is not None]
    return over_seeds(there, digits) if len(there) == len(values) else MISSING


def errorless_total(cell: Cell, size: str, style: str | None = None) -> float | None:
    """Mean total tokens of a cell's errorless player at a size, of its only style if none is named."""
    styles = cell.get("errorless", {}).get(size, {})
    found = styles.get(style) if style is not None else next(iter(styles.values()), None)
    return None if found is None else found.get("total_tokens")


def each(values: Sequence[float | None], digits: int = 2) -> str:
    return " ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _ledgers(cells: Sequence[Cell]) -> str:
    arms: dict[str, list[Cell]] = {}
    for cell in cells:
        arms.setdefault(cell["arm"], []).append(cell)
    sizes = cells[0]["sizes"]
    heads = [f"{arm}, seeds {' '.join(str(cell['seed']) for cell in found)}" for arm, found in arms.items()]
    lines = [LEDGERS, "", "| named x entries | " + " | ".join(heads) + " |", "|---" * (len(arms) + 1) + "|"]
    for size, first in sizes.items():
        row = [f"{size}{'' if first['shift'] == 'in' else ', more than trained on'}"]
        for found in arms.values():
            accuracy = [cell["sizes"][size]["accuracy"] for cell in found]
            row.append(f"{over_seeds(accuracy)} ({each(accuracy)})")
        lines.append("| " + " | ".join(row) + " |")
    lines += [
        "",
        *_unlearned(cells),
        LEDGER_COSTS,
        "",
        "| named x entries | arm | accuracy | " + " | ".join([*map(_words, COSTS), "errorless total"]) + " |",
    ]
    lines.append("|---" * (len(COSTS) + 4) + "|")
    for size in sizes:
        for arm, found in arms.items():
            costs = [measured([cell["sizes"][size].get(cost) for cell in found]) for cost in COSTS]
            costs.append(measured([errorless_total(cell, size) for cell in found]))
            accuracy = mean(cell["sizes"][size]["accuracy"] for cell in found)
            lines.append(f"| {size} | {arm} | {accuracy:.2f} | " + " | ".join(costs) + " |")
    return "\n".join(lines)


def _unlearned(cells: Sequence[Cell]) -> list[str]:
    """A sentence for every cell that did not learn what it was shown, and so says nothing of what it was not."""
    lines = []
    for cell in cells:
        low = {
            size: figures["accuracy"]
            for size, figures in cell["sizes"].items()
            if figures["shift"] == "in" and figures["accuracy"] < LEARNED
        }
        if low:
            shown = ", ".join(f"{size} {accuracy:.2f}" for size, accuracy in low.items())
            lines += [f"- {cell['arm']}, seed {cell['seed']}, did not learn sizes that it was trained on: {shown}"]
    return [*lines, ""] if lines else []


def _when(cells: Sequence[Cell]) -> str:
    sizes = list(cells[0]["decisions"]["before"]["sizes"])
    lines = [WHEN, "", "| policy | " + " | ".join(f"{size} terms" for size in sizes) + " | all |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for name, when, way in _POLICIES:
        found = [cell["decisions"][when] for cell in cells]
        row = [_shares([judged["sizes"][size][way] for judged in found]) for size in sizes]
        lines.append(f"| {name} | " + " | ".join([*row, _shares([judged[way] for judged in found])]) + " |")
    for style, words in (("delegate", "always"), ("solve", "never")):
        by_cell = [[errorless_total(cell, size, style) for size in sizes] for cell in cells]
        whole = [None if None in totals else mean(filter(None, totals)) for totals in by_cell]  # sizes are equally many
        shown = [measured(totals) for totals in [*zip(*by_cell, strict=True), whole]]
        lines.append(f"| errorless, {words}: total tokens | " + " | ".join(shown) + " |")
    lines += ["", DECISIONS, "", "| seed | share delegated by size, before | after |"]
    lines += [
        "|---|---|---|",
        *(
            f"| {cell['seed']} | "
            + " | ".join(
                each([cell["decisions"][when]["sizes"][size]["free"]["delegated"] for size in sizes])
                for when in ("before", "after")
            )
            + " |"
            for cell in cells
        ),
    ]
    lines += ["", "| | " + " | ".join(f"seed {cell['seed']}" for cell in cells) + " | mean |"]
    lines.append("|---" * (len(cells) + 2) + "|")
    for name, when, read in _VERDICTS:
        values = [read(cell["decisions"][when]) for cell in cells]
        known = [value for value in values if value is not None]
        shown = over_seeds(known, 3) if known else "-"
        lines.append(f"| {name} | " + " | ".join(each([value], 3) for value in values) + f" | {shown} |")
    return "\n".join(lines)


_POLICIES = (
    ("before RL", "before", "free"),
    ("after RL", "after", "free"),
    ("forced always, weights after RL", "after", "always"),
    ("forced never, weights after RL", "after", "never"),
)
_VERDICTS = (
    ("reward before RL", "before", lambda found: found["free"]["reward"]),
    ("reward after RL", "after", lambda found: found["free"]["reward"]),
    ("after RL - always", "after", lambda found: found["free"]["reward"] - found["always"]["reward"]),
    ("after RL - never", "after", lambda found: found["free"]["reward"] - found["never"]["reward"]),
    ("best threshold from the weights after RL, terms", "after", lambda found: found["threshold"]),
    ("regret before RL", "before", lambda found: found["regret"]),
    ("regret after RL", "after", lambda found: found["regret"]),
    ("decision F1 before RL", "before", lambda found: found["f1"]),
    ("decision F1 after RL", "after", lambda found: found["f1"]),
)


def _shares(found: Sequence[Mapping[str, float]]) -> str:
    average = {key: mean(part[key] for part in found) for key in found[0]}
    return f"{average['delegated']:.2f} / {average['accuracy']:.2f} / {average['tokens']:.0f} / {average['reward']:.2f}"


def _words(cost: str) -> str:
    return cost.replace("_", " ")


HEAD = """# Where delegating pays, and when

Two experiments with the embedded model (0.17 M parameters). Everything on this page is printed by `python
benchmarks/delegation.py` from the files in `docs/evidence`, one for every arm and seed; `--rerun
EXPERIMENT/ARM/seedN` makes any of them again. The configurations were tuned on seeds from 100 on, then frozen; of
the planned seeds 0 to 4 those that have been run to their end stand here, every one of them, and the log below
names those that were begun and stopped for lack of time. **The tables are partial.** ± is a 95 % interval over
seeds (Student's t); a seed is an independent repetition of everything: initial weights, warm start, rollouts. The
test instances are the same for all seeds."""

LEDGERS = """## Where: long keyed ledgers

A question names ledgers of letter fields with a digit each; the answer is the last digit of the sum of all their
entries. `delegating` hands each ledger to a clone. `reading` reads ledger by ledger into its own context, with a
subtotal of each. Both learn by imitation alone (there is no RL here) and see at most 36 named entries in training;
`reading_long`, where it is shown, is the reader that has seen up to 168. Accuracy, greedy: the mean over seeds, and
every seed in brackets."""

LEDGER_COSTS = """What it costs, per instance; billed tokens are those of a server that keeps nothing between calls.
An arm that fails may be cheap because it stops early: compare costs where accuracies are about equal, and with the
errorless player of the arm's own strategy, the expert on the same instances. — was not measured when the cell was
run."""

WHEN = """## When: range sums under a window

A range sum of 1 to 24 terms, whose prompt shows the number of terms rounded up to fives. An agent's window holds
about 11 terms; four clones of 10 hold them all. A token costs reward, right answers alone pay. The warm start shows
both styles half and half at every size and without the window, so it knows nothing of *when*; RL has to find out.

Share delegated / accuracy / total tokens / reward, greedy, mean over seeds. The forced rows begin the root's first
turn for it, with a call or with work of its own, and leave all else to the same weights. The errorless rows are the
expert's by either choice, without the window where it does not hold the sum; — was not measured yet."""

DECISIONS = """An instance is worth delegating if forced `always` earns more on it than forced `never`. The best
threshold is the size from which on to delegate that earns most on these very instances; regret is how much more it
earns than the policy. Decision F1 is that of delegating where it is worth it."""

TUNING = """## Tuning

Every run that led to the frozen configurations, in order, and reported seeds that were begun and stopped. CPU-s are
of training on a shared machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rerun", metavar="CELL", help="EXPERIMENT/ARM/seedN, as when/delegating/seed0")
    cell = parser.parse_args().rerun
    if cell is not None:
        print(f"written to {rerun(cell)}")
        return
    print(page(*stored()), end="")


if __name__ == "__main__":
    main()
