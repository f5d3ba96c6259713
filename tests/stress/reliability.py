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

What was put into this project to break it, and what became of it. Three commands make the figures, one prints this page
from what they have stored in `tests/stress/evidence`; a test compares the two. What the project does on a fault
is in [Faults and exit codes](faults.md).

*Results of version {version} ({commits}). The commands, given again, repeat the distribution of these figures, not
their digits.*"""

AGAIN = """## Again

```bash
python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json    # hostile texts, files and records
python tests/stress/soak.py --workers 2    # hostile episodes, counted again
python tests/stress/faults.py              # kills, full disks, rot, engines and servers
python tests/stress/faults.py --cost       # what a checkpoint costs of a step
python tests/stress/reliability.py > docs/reliability.md
```

Soak and faults go on where they stopped. Each of the first three ends with code 1 where it has a finding, and prints
what repeats it: a target with a seed, a chunk (`--only threads:17`), a fault (`--only kill:17`)."""


def missing(part: str) -> str:
    return f"Not there: `tests/stress/{part}.py` has stored nothing yet."


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers stand at the right, with separators."""

    def cell(value: object) -> str:
        return f"{value:,}" if isinstance(value, int | float) else str(value)

    lines = [head, ["---", *["---:"] * (len(head) - 1)], *[[cell(value) for value in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def promise(fuzz: Any, soak: Any, faults: Any) -> str:
    """What was promised, and what became of it, in one table."""
    kinds = (faults or {}).get("kinds", {})
    each, aims = list((fuzz or {}).get("targets", {}).values()), list(kinds.values())
    numbers = soak["kinds"].get("symbolic", NOTHING) if soak else dict.fromkeys(NOTHING, NONE)
    words = {name: soak[name] - numbers[name] for name in NOTHING} if soak else numbers
    rows = [
        ("Faults put into runs and studies", sum(of["injected"] for of in aims) if aims else NONE, ""),
        ("Runs and studies they were put into", sum(of["runs"] for of in aims) if aims else NONE, ""),
        ("of these survived", sum(of["survived"] for of in aims) if aims else NONE, "all"),
        (f"Steps lost, at most{without('steps_lost', kinds)}", overall("steps_lost", aims, max), "1"),
        (f"Tokens lost or counted twice{without('tokens_off', kinds)}", overall("tokens_off", aims, sum), "0"),
        (
            f"Bytes lost of what a checkpoint counts{without('bytes_lost', kinds)}",
            overall("bytes_lost", aims, sum),
            "0",
        ),
        ("Crashes", sum(of["crashes"] for of in aims) if aims else NONE, "0"),
        ("Hostile episodes in words, counted again from their records alone", words["episodes"], "200,000"),
        ("their tokens", words["tokens"], ""),
        ("Hostile episodes in numbers, counted again from the game's arrays after each step", numbers["episodes"],
         "1,000,000 with those in words"),
        ("their tokens", numbers["tokens"], ""),
        ("Differences from either recount", len(soak["findings"]) if soak else NONE, "0"),
        ("Hostile inputs", sum(of["inputs"] for of in each) if each else NONE, "1,000,000"),
        ("Findings in them", sum(of["findings"] for of in each) if each else NONE, "0"),
        ("Executed of what a model wrote", fuzz["executed"] if fuzz else NONE, "0"),
        ("Longest time on one input, ms", max(of["longest_ms"] for of in each) if each else NONE, ""),
    ]  # fmt: skip
    return table(["", "Found", "Wanted"], rows)


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
    return "\n\n".join([said, table(head, rows), ENDS, HITS, "\n".join(_hits(kinds))])


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

FAULTS = """Each run is real and small: a warm start, {steps} steps of RL that play ahead of the learner,
counterfactual replays, an evaluation, a table. A checkpoint follows every pool and every step
(`checkpoint_every: {every}`): *steps lost* were measured with this. Of {runs} runs {shell} were started from the
shell, with a worker process and with plots. All others were forked from a process that has the modules, and play their
jobs in it: they meet no worker process and draw no plots. A run that was over before its fault came is no run with a
fault: {again} were drawn again. {cpu:,} CPU seconds, those of workers whose command was killed not included."""

ENDS = """*Survived* are those with no finding. *Same bits*: after `--resume` weights, metrics, episodes, results and
checkpoints are those of an undisturbed run, and nothing is left behind. *Counted*: groups of a step were played again
or left out, and `metrics.jsonl` has just the counts of those that were lost; or exactly the one question that was never
answered is missing in a study, all other results are those of an undisturbed one, and its report says so and leaves it
out of every strategy. *One line*: the command ended with a documented exit code, one line, and nothing changed but the
log of errors (and of sessions, where a server was down) and a `config.yaml` that is written again;
with the damaged file put back, or the server well again, `--resume` then came to the same end as
undisturbed. Anything else is a finding.

*Faults* are signals that were delivered, disks that were full, files whose bytes were others, engines and servers that
failed; *requests failed* are counted on their own. *Steps lost* are steps and pools learned again: those in
`metrics.jsonl` beyond the newest checkpoint, and after damage to a file those that the resumed run was seen to learn
once more. *Tokens off* is the account of sampled tokens against episodes, replays and lost tries; in a study, what
results say was generated against what the server says. *Bytes lost* are of what the newest checkpoint counts on, after
the fault and at the end; of a damaged file at the end. A minus is what was not measured: a study has no steps and no
checkpoint."""

HITS = "What was really hit, how often:"


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

SOAK = """Players write calls, reads, answers, attacks, cut and over-long texts, replies one token below, at and above
their limit, and report any usage. Every limit is drawn from 0, none, tiny and large.

*In words*, from the record alone, with an arithmetic of its own that imports nothing of the ledger or of the game's
counters, a recount plays the episode again: the price of every block that the environment wrote, every purse of total
tokens, generated tokens and clones down the tree, what each call and each turn is granted and charged, what flows back,
why each call or read is refused, how each agent ends. All must be as recorded, neither more nor less. Only wording is
not its own: the protocol says how a block reads, what a text asks for and what of a reply gets through. Episodes by
threads are played again one by one and must be equal.

*In numbers* episodes are counted from their arrays after every joint step, of random subsets of agents:
spent + reserved + free is the total at each. Shares must be exact; which actions are legal and how long a segment is
are the game's own word, so a call that is wrongly refused is not seen there. The tokens of a symbolic episode that is
played in words must be those in numbers.

Not seen in words: what a protocol words or reads wrongly; a wrong purse of generated tokens or clones, which are in no
record, before it decides a grant or a refusal; whether a text that `delegation_v0` has dropped was over its grant; more
than the first difference of an episode. {cpu:,} CPU seconds."""


def _fuzz(fuzz: Mapping[str, Any]) -> str:
    names = ("inputs", "refusals", "findings", "longest_ms", "exponent")
    rows = [
        [f"`{name}`", *["-" if of[key] is None else of[key] for key in names]] for name, of in fuzz["targets"].items()
    ]
    return "\n\n".join([FUZZ, table(["", "Inputs", "Refused", "Findings", "Longest, ms", "Exponent"], rows)])


FUZZ = """Hostile texts, files, configs and records. *Refused* are those that ended in an error of this project's own
kind. *Exponent* is that of CPU time in the length of the input, over an eightfold length, of the piece for which it is
steepest: from 2,000 characters on, parsers from 16,000, chat codecs from 500, YAML and configs from 250. One above 1.5
that stays there at four times these lengths, twice, is a finding; a quadratic term too small to show there is none.
Families of templates have their roles asserted on ids."""


def _found(evidence: Mapping[str, Any]) -> str:
    """Every finding that stands in the evidence; of many of one kind in a target the first."""
    lines = [f"- {part}: {text}" for part in ("soak", "faults") for text in evidence.get(part, {}).get("findings", ())]
    for name, of in evidence.get("fuzz", {}).get("targets", {}).items():
        lines += [f"- fuzz `{name}`: {text}" for text in of["first_findings"]]
    made = ", ".join(f"{part} of `{_short(evidence[part]['commit'])}`" for part in PARTS if part in evidence)
    made = f"\n\nCommits: {made}; a + is with changes." if made else ""
    return "\n".join(lines or ["Nothing is open."]) + f"\n\n{MENDED}" + made


MENDED = """\
What these commands found before, each with a test of its own since: a record with half of a surrogate pair
could not be written; YAML with unclosed brackets took quadratic time; a policy longer than any path was a
traceback, as were strange bytes, deep JSON and huge numbers in a study's files; SIGTERM while a report was
written ended without a line; a damaged evaluation from before RL gave another table in silence, as did a number
that had turned into another one in a study's results; a refused `--resume` moved files of a study before it
refused."""


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
        f"A checkpoint of the newcomer's config (`{cost['config']}`, variant `{cost['arm']}`, "
        f"{cost['checkpoint_bytes'] / 1e6:.1f} MB) takes {1000 * cost['checkpoint_wall_s']:.0f} ms beside steps of "
        f"{cost['step_wall_s']:.1f} s, {share:.1%} (medians of {cost['steps']} steps at `{_short(cost['commit'])}`; of "
        f"CPU time {cost['share_cpu']:.1%}), {little} than {LITTLE:.0%}. The default is `checkpoint_every: {every}`: a "
        f"kill costs at most {again} again to the same bits"
    )


UNMEASURED = "What a checkpoint costs of a step (`tests/stress/faults.py --cost`) is not measured yet"

NOT_PROMISED = """## What is not promised

- **At most one step is lost only where a checkpoint follows every step.** {cost}. With large models a checkpoint may
  take longer than a step, and it was not measured there: then `checkpoint_every` is the price that you choose, in
  steps, and the configs that name such models set it higher. SIGTERM loses none.
- **What was done within a step is lost.** A kill in a step plays that step again; its tokens are sampled again and a
  server bills them again. The account counts them once: it is of the run, not of the bill.
- **Same bits on the same machine.** Same versions, number of threads and kind of processor. A server that is not
  deterministic, or a batch that an outage has split, gives other samples; what is counted is still right.
- **A file system that keeps its word.** What `fsync` has returned from is taken to be on the disk. No power was cut.
- **The best checkpoint.** The newest are kept, and none for its score: a step's own return is no honest measure of
  which is best ([why](decisions.md#training)).
- **Roles in plain words without a tokenizer.** Of a server whose template writes `USER:` or `### Instruction:` as plain
  text nothing is known here unless its tokenizer is named; with it these too are broken.
- **Damage after the last look.** Digests are checked when a run is resumed. A byte that turns in a finished model, in
  plots, tables or TensorBoard files is nobody's to find; nor is one in the results of a study of an earlier version,
  whose lines have no digest.
- **Somebody else's process.** Two commands on one folder are kept apart by a lock; a program that edits files of a
  running run is not.
- **Attacks nobody thought of.** Players, texts and faults are those of the commands below. What they have not found
  is not thereby absent."""

if __name__ == "__main__":
    sys.stdout.write(page(stored()))
