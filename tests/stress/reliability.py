"""The page of reliability, from what three attacks have stored.

    python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json    # hostile texts, files and records
    python tests/stress/soak.py --workers 2         # hostile episodes, counted again
    python tests/stress/faults.py                   # kills, full disks, rot, servers that fail
    python tests/stress/faults.py --cost            # what a checkpoint costs of a step
    python tests/stress/reliability.py > docs/reliability.md

The page says of a part that is not stored that it is not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfcest_env import __version__

ROOT = Path(__file__).parents[2]
STORE = ROOT / "tests" / "stress" / "evidence"
PARTS = ("fuzz", "soak", "faults")
FIRST_VERSION = "0.1.0"  # of stored evidence that names a commit and no version
LITTLE = 0.05  # of a step: what a checkpoint may cost where at most one step is lost


def commit() -> str:
    """Of this checkout; with a + where files differ from it."""
    head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())


def written(path: Path, found: Mapping[str, Any]) -> None:
    """Store evidence as JSON, with the version and the commit it is of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"version": __version__, "commit": commit(), **found}, indent=1) + "\n", encoding="utf-8"
    )


def stored(folder: Path = STORE) -> dict[str, Any]:
    """The evidence by part; what has not been made is not there."""
    files = {part: folder / f"{part}.json" for part in PARTS}
    return {part: json.loads(file.read_text(encoding="utf-8")) for part, file in files.items() if file.exists()}


def _commits_in(evidence: Any) -> Iterator[str]:
    """Every commit that stored evidence names, at any depth."""
    if isinstance(evidence, Mapping):
        for key, value in evidence.items():
            if key == "commit":
                yield value
            else:
                yield from _commits_in(value)


def page(evidence: Mapping[str, Any]) -> str:
    """`docs/reliability.md`."""
    fuzz, soak, faults = (evidence.get(part) for part in PARTS)
    versions = sorted({part.get("version", FIRST_VERSION) for part in evidence.values()})
    commits = sorted({name[:7] for part in evidence.values() for name in _commits_in(part)})
    return "\n\n".join(
        [
            HEAD.format(version=", ".join(versions), commits=", ".join(f"`{name}`" for name in commits)),
            promise(fuzz, soak, faults),
            "## Faults",
            _faults(faults) if faults else missing("faults"),
            "## Episodes",
            _soak(soak) if soak else missing("soak"),
            "## Inputs",
            _fuzz(fuzz) if fuzz else missing("fuzz"),
            "## Findings",
            _found(evidence),
            _not_promised(faults),
            AGAIN,
        ]
    ) + "\n"  # fmt: skip


HEAD = """# Reliability

For users who let long jobs run, and ask what a fault costs. This page has the results of fault injection, of hostile
episodes and of hostile inputs. [Faults and exit codes](faults.md) says what the project does on a fault.

*Results of version {version} ({commits}). The commands, given again, repeat the distribution of these figures, not
their digits.*"""

AGAIN = """## Commands

```bash
python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json    # hostile texts, files and records
python tests/stress/soak.py --workers 2    # hostile episodes, counted again
python tests/stress/faults.py              # kills, full disks, damaged files, engines and servers
python tests/stress/faults.py --cost       # time of a checkpoint, as a share of a step
python tests/stress/reliability.py > docs/reliability.md
```

The second and third command resume where they stopped. Each of the first three ends with code 1 if it has a finding,
and prints what repeats it: a target with a seed, a chunk (`--only threads:17`) or a fault (`--only kill:17`)."""


def missing(part: str) -> str:
    return f"Not there: `tests/stress/{part}.py` has stored nothing yet."


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers stand at the right, with separators."""

    def cell(value: object) -> str:
        return f"{value:,}" if isinstance(value, int | float) else str(value)

    lines = [head, ["---", *["---:"] * (len(head) - 1)], *[[cell(value) for value in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fold(title: str, text: str) -> str:
    """Text that a reader of the site unfolds."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def promise(fuzz: Any, soak: Any, faults: Any) -> str:
    """What was promised, and what became of it, in one table."""
    kinds = (faults or {}).get("kinds", {})
    each, aims = list((fuzz or {}).get("targets", {}).values()), list(kinds.values())
    numbers = soak["kinds"].get("symbolic", NOTHING) if soak else dict.fromkeys(NOTHING, NONE)
    words = {name: soak[name] - numbers[name] for name in NOTHING} if soak else numbers
    rows = [
        ("Faults injected", sum(of["injected"] for of in aims) if aims else NONE, ""),
        ("Runs and studies with faults", sum(of["runs"] for of in aims) if aims else NONE, ""),
        ("Survivors of these", sum(of["survived"] for of in aims) if aims else NONE, "all"),
        (f"Steps lost, at most{without('steps_lost', kinds)}", overall("steps_lost", aims, max), "1"),
        (f"Tokens lost or counted twice{without('tokens_off', kinds)}", overall("tokens_off", aims, sum), "0"),
        (
            f"Bytes lost of what a checkpoint counts{without('bytes_lost', kinds)}",
            overall("bytes_lost", aims, sum),
            "0",
        ),
        ("Crashes", sum(of["crashes"] for of in aims) if aims else NONE, "0"),
        ("Hostile episodes in words, counted again from their records", words["episodes"], "200,000"),
        ("Tokens of these", words["tokens"], ""),
        ("Hostile episodes in numbers, counted again after each step", numbers["episodes"],
         "1,000,000 with those in words"),
        ("Tokens of these", numbers["tokens"], ""),
        ("Differences from either recount", len(soak["findings"]) if soak else NONE, "0"),
        ("Hostile inputs", sum(of["inputs"] for of in each) if each else NONE, "1,000,000"),
        ("Findings in them", sum(of["findings"] for of in each) if each else NONE, "0"),
        ("Texts of a model that were executed", fuzz["executed"] if fuzz else NONE, "0"),
        ("Longest time on one input, ms", max(of["longest_ms"] for of in each) if each else NONE, ""),
    ]  # fmt: skip
    return table(["", "Result", "Wanted"], rows)


NOTHING = {"episodes": 0, "tokens": 0}
NONE = "not measured"


def overall(name: str, aims: Sequence[Mapping[str, Any]], together: Callable[[list[int]], int]) -> int | str:
    """Of all kinds of faults that have measured it."""
    known = [of[name] for of in aims if of[name] is not None]
    return together(known) if known else NONE


def without(name: str, kinds: Mapping[str, Mapping[str, Any]]) -> str:
    """Which kinds of faults have not measured it in every run."""
    lacking = [MEANT[kind] for kind, of in kinds.items() if of["measured"][name] < of["runs"]]
    return f" (not measured in all runs of: {', '.join(lacking)})" if lacking else ""


def _measured(name: str, of: Mapping[str, Any]) -> object:
    if of[name] is None:
        return "-"
    return of[name] if of["measured"][name] == of["runs"] else f"{of[name]:,} (of {of['measured'][name]} runs)"


def _faults(faults: Mapping[str, Any]) -> str:
    kinds = faults["kinds"]
    rows = [
        [
            MEANT[kind], of["runs"], of["injected"], "-" if of["failed"] is None else sum(of["failed"].values()),
            of["survived"], *[_measured(name, of) for name in ("steps_lost", "tokens_off", "bytes_lost")],
            of["crashes"], ", ".join(f"{end} {n}" for end, n in of["ended"].items()),
        ]
        for kind, of in kinds.items()
    ]  # fmt: skip
    head = ["", "Runs", "Faults", "Requests failed", "Survived", "Steps lost", "Tokens off", "Bytes lost", "Crashes",
            "Ended in"]  # fmt: skip
    said = FAULTS.format(
        steps=faults["steps"],
        every=faults["checkpoint_every"],
        shell=kinds.get("whole", {"runs": 0})["runs"],
        runs=faults["runs"],
        cpu=faults["cpu_s"],
        again=sum(of["drawn_again"] for of in kinds.values()),
    )
    return "\n\n".join([said, table(head, rows), ENDS, fold(HITS, "\n".join(_hits(kinds)))])


def _hits(kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for kind, of in kinds.items():
        lines.append(f"- {MEANT[kind]}: {_counts(of['hits'])}.")
        if of["failed"]:
            lines[-1] += f" Requests failed: {_counts(of['failed'])}."
        if of["not_hit"]:
            lines[-1] += f" **Not hit:** {', '.join(of['not_hit'])}."
    return lines


def _counts(of: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in of.items()) or "nothing"


MEANT = {
    "kill": "SIGKILL",
    "term": "SIGTERM",
    "whole": "signals, started from the shell",
    "disk": "full disk",
    "rot": "damaged file",
    "engine": "engine that fails",
    "server": "server that fails",
}

FAULTS = """Each run is real and small: a warm start, {steps} steps of RL ahead of the learner, counterfactual replays,
an evaluation and a table. A checkpoint follows every pool and every step (`checkpoint_every: {every}`). Of {runs} runs
{shell} were started from the shell. The others play their jobs in one process, without plots. {again} runs that were
over before their fault came were drawn again. {cpu:,} CPU seconds."""

ENDS = """*Survived* runs have no finding: they ended in one of three ways.

- *Same bits*: after `--resume`, weights, metrics, episodes and results equal those of an undisturbed run.
- *Counted*: groups of a step were played again or left out, and `metrics.jsonl` has their number. In a study, the
  unanswered question is left out of every strategy, and the report says so.
- *One line*: the command ended with a documented exit code and one line. `--resume` reached the same end after the
  file or the server was mended.

*Steps lost* are steps and pools that were learned again. *Tokens off* compares the account of sampled tokens with
episodes, replays and lost tries. *Bytes lost* are of what the newest checkpoint counts on. A minus was not measured."""

HITS = "Where the faults came, and how often:"


def _soak(soak: Mapping[str, Any]) -> str:
    rows = [
        [KINDS[kind], of["episodes"], f"{of['share_with_clones']:.0%}", of["clones"], of["turns"], of["tokens"],
         of["findings"]]
        for kind, of in soak["kinds"].items()
    ]  # fmt: skip
    head = ["", "Episodes", "With clones", "Clones", "Turns", "Tokens", "Findings"]
    return "\n\n".join([SOAK.format(cpu=soak["cpu_s"]), table(head, rows)])


KINDS = {
    "kernel": "kernel, agents in any order",
    "scattered": "rollout, answers out of order",
    "threads": "rollout, answers by four threads",
    "pettingzoo": "`delegation_v0`",
    "twin": "symbolic, played in words",
    "symbolic": "symbolic, batched",
}

SOAK = """Scripted players write calls, reads, answers, attacks, and texts below, at and above their limits. Limits are
drawn from 0, none, tiny and large. A recount that imports nothing of the ledger then checks each episode.

- *In words*, it plays the episode again from its record: prices of blocks, accounts down the tree, grants, charges,
  refunds, refusals and ends must be as recorded. The wording of a block is the protocol's own.
- *In numbers*, spent + reserved + free is the total after every joint step. Which actions are legal is the game's own
  word, so a call that is wrongly refused is not seen.

Also not seen: what a protocol words or reads wrongly, accounts that are in no record before they decide a grant, and
more than the first difference of an episode. {cpu:,} CPU seconds."""


def _fuzz(fuzz: Mapping[str, Any]) -> str:
    names = ("inputs", "refusals", "findings", "longest_ms", "exponent")
    rows = [
        [f"`{name}`", *["-" if of[key] is None else of[key] for key in names]] for name, of in fuzz["targets"].items()
    ]
    by_target = table(["", "Inputs", "Refused", "Findings", "Longest, ms", "Exponent"], rows)
    return "\n\n".join([FUZZ, fold(f"{len(rows)} targets", by_target)])


FUZZ = """Hostile texts, files, configs and records. *Refused* inputs ended in an error of this project's own kind.
*Exponent* is that of CPU time in the length of the input, over an eightfold length, for the steepest piece. One above
1.5 that stays there at four times these lengths, twice, is a finding."""


def _found(evidence: Mapping[str, Any]) -> str:
    """Every finding that stands in the evidence; of many of one kind in a target the first."""
    lines = [f"- {part}: {text}" for part in ("soak", "faults") for text in evidence.get(part, {}).get("findings", ())]
    for name, of in evidence.get("fuzz", {}).get("targets", {}).items():
        lines += [f"- fuzz `{name}`: {text}" for text in of["first_findings"]]
    made = ", ".join(f"{part} of `{_short(evidence[part]['commit'])}`" for part in PARTS if part in evidence)
    made = f"\n\nCommits: {made}; a + is with changes." if made else ""
    return "\n".join(lines or ["Nothing is open."]) + f"\n\n{MENDED}" + made


MENDED = """\
Earlier findings, each with a test of its own now: half of a surrogate pair in a record; YAML with unclosed brackets in
quadratic time; tracebacks for long policy names, strange bytes, deep JSON and huge numbers in a study; SIGTERM during a
report without a line; damaged evaluations and results that were read without an error; a refused `--resume` that had
moved files."""


def _short(commit: str) -> str:
    return commit[:12] + "+" * commit.endswith("+")


def _not_promised(faults: Any) -> str:
    cost = (faults or {}).get("checkpoint")
    return NOT_PROMISED.format(cost=_cost(cost) if cost else UNMEASURED)


def _cost(cost: Mapping[str, Any]) -> str:
    every, share = cost["checkpoint_every"], cost["share_wall"]
    little = "less" if share < LITTLE else "not less"
    again = "one step and its logs, which come" if every == 1 else f"{every} steps and their logs, which come"
    return (
        f"A checkpoint of the default run (`{cost['config']}`, variant `{cost['arm']}`, "
        f"{cost['checkpoint_bytes'] / 1e6:.1f} MB) takes {1000 * cost['checkpoint_wall_s']:.0f} ms, and a step "
        f"{cost['step_wall_s']:.1f} s: {share:.1%} (medians of {cost['steps']} steps at `{_short(cost['commit'])}`; of "
        f"CPU time {cost['share_cpu']:.1%}), {little} than {LITTLE:.0%}. With the default `checkpoint_every: {every}`, "
        f"a kill costs at most {again} again to the same bits"
    )


UNMEASURED = "What a checkpoint costs of a step (`tests/stress/faults.py --cost`) is not measured yet"

NOT_PROMISED = """## What is not promised

- **At most one step is lost only if a checkpoint follows every step.** {cost}. With large models a checkpoint may
  take longer than a step, and it was not measured there. Their configs set `checkpoint_every` higher. SIGTERM loses
  none.
- **The work within a step is lost.** Its tokens are sampled again, and a server bills them again.
- **Same bits need the same machine**: versions, number of threads and kind of processor. A server that is not
  deterministic gives other samples.
- **The file system must keep its word.** What `fsync` has returned from counts as stored. No power was cut.
- **The best checkpoint is not kept**, only the newest ([why](decisions.md#training)).
- **Roles in plain words** (`USER:`) are broken only if the tokenizer of the server's model is named.
- **Damage after the last check is not seen**: in finished models, plots, tables and TensorBoard files.
- **Other programs that edit files of a running run are not kept out.** Two commands on one folder are, by a lock.
- **Other attacks may succeed.** Players, texts and faults are those of the commands below."""

if __name__ == "__main__":
    sys.stdout.write(page(stored()))
