"""Faults put into small, real training runs and studies, and what became of each.

    python tests/stress/faults.py                    # what is missing of 100 faults; goes on where it stopped
    python tests/stress/faults.py --only kill:17     # one fault again, with its folder kept
    python tests/stress/faults.py --cost             # what a checkpoint costs of a step of the newcomer's config

Every fault ends in one of three ways, or it is a finding: the *same bits* as an undisturbed run after `--resume`
(weights, metrics, episodes, table); *counted*: groups or instances played again or left out, and booked to the token;
*one line* with a documented exit code, with everything left as it was. A run is a process of its own: `selfcest train`
with a warm start, rollouts ahead of the learner, counterfactual replays, checkpoints and an evaluation. Most are forked
from this process and train in one process, which spares the imports; those of the kind `whole` are started from the
shell and have a worker.

kinds: kill: SIGKILL at a chosen place, at a random moment of CPU time, or several times in a row. term: SIGTERM, at a
chosen place. whole: both, to a command with a worker and to the worker. disk: a file system that is full, by a tmpfs
where this may be mounted, else by a limit on the size of files. rot: bytes flipped, files cut, emptied, deleted, lines
added, in what a run that was stopped or is done has left. engine: an engine that loses requests or raises. server: a
study by a server that fails, stalls, drips, babbles, hangs up or goes down (needs the extra `openai`).

What counts is what came about: a signal that was delivered, a file whose bytes are others. A run that was over before
its fault came is drawn again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial, wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import yaml

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "tests" / "stress" / "evidence" / "faults.json"
PLUGINS = ROOT / "tests" / "support"
PLAN = {"kill": 26, "term": 10, "whole": 12, "disk": 8, "rot": 30, "engine": 8, "server": 6}
DRAWS = 12
JOB = Path("delegating") / "seed0"
STEPS = 4
DEADLINE_S = 300
# docs/faults.md: 2 a mistake, here files that no run can go on from; 3 infrastructure.
STOPPED = 128 + signal.SIGTERM
DOCUMENTED = (2, 3, STOPPED)

RUN: dict[str, Any] = {
    "name": "run",
    "model": {
        "name": "tiny",
        "options": {
            "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "max_positions": 96
        },
    },
    "sampler": {"name": "transformers", "options": {"dtype": "float32"}},
    "limits": {
        "total_tokens": 80, "turn_tokens": 16, "reply_tokens": 2, "answer_reserve": 4, "max_turns": 3, "max_clones": 1
    },
    "tasks": {"choice": {"name": "trivial:Choice"}},
    "variants": {
        "delegating": {
            "warmstart": {
                "phases": [{"tokens": 8000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}],
                "pool_tokens": 4000, "batch_tokens": 512,
                "optimizer": {"learning_rate": 1e-2, "warmup_steps": 5},
            },
            "rl": {
                "steps": STEPS, "tasks": {"choice": 1}, "tasks_per_step": 4, "group_size": 4, "temperature": 1.0,
                "optimizer": {"learning_rate": 3e-3, "warmup_steps": 1}, "loss_denominator_tokens": 10.0,
                "max_staleness": 1, "credit": {"name": "difference"}, "max_failed_fraction": 0.5,
            },
        }
    },
    "evaluation": {"eval_sets": [{"family": "choice", "size": "any"}], "episodes": 8},
    "checkpoint_every": 1,
    "log_groups": 99,
    "workers": 1,
}  # fmt: skip
STUDY: dict[str, Any] = {
    "name": "study",
    "budgets": [900],
    "episodes": 12,
    "batch": 4,
    "limits": {"turn_tokens": 60, "reply_tokens": 20, "answer_reserve": 20},
    "strategies": {"delegate": {}, "monolithic": {}},
    "tasks": {"choice": {"name": "trivial:Choice"}},
    "eval_sets": [{"family": "choice", "size": "any"}],
    "max_failed_fraction": 0.5,
}


@dataclass
class Fault:
    """One fault and what became of it.

    `None` is what was not measured.

    Attributes:
        kind, number: its name; all that is random follows from it.
        what: in words.
        ended: `same bits`, `counted`, `one line`, or empty.
        findings: what broke the promise; none if it held.
        hits: places of the plan that were really hit, one for each fault that came about.
        failed: requests that failed, by how.
        steps_lost: steps and pools that had been learned and were learned again, at most.
        tokens_off: tokens lost or counted twice.
        bytes_lost: of what the newest checkpoint counts on: after the fault (but for a damaged file, which is the
            fault) and at the end.
        crashes: processes that ended with a trace, an undocumented code or not at all.
        drawn_again: runs that were over before their fault came.
        cpu_s: of all processes that were waited for; a worker whose command was killed is not.
    """

    kind: str
    number: int
    what: str = ""
    ended: str = ""
    findings: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    failed: dict[str, int] | None = None
    steps_lost: int | None = None
    tokens_off: int | None = None
    bytes_lost: int | None = None
    crashes: int = 0
    drawn_again: int = 0
    cpu_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"

    def claim(self, holds: bool, what: str) -> bool:
        if not holds:
            self.findings.append(what)
        return holds


# --- Running ----------------------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """How a process ended: its exit code, below 0 a signal, and what it said."""

    code: int
    said: str
    cpu_s: float = 0.0

    @property
    def one_line(self) -> bool:
        """One line of the command's own is the last, and before it are only warnings as Python prints them: a line
        that names a place and a category, and one of its source."""
        return re.fullmatch(r"(\S+:\d+: \w*Warning: .*\n(  \S.*\n)?)*selfcest: .+\n", self.said) is not None


Install = Callable[[], None]
Watch = Callable[[int], None]


def start(arguments: list[str], install: Install | None = None, watch: Watch | None = None) -> Ended:
    """`selfcest` in a child of this process that has all modules, with a fault installed; `watch` is told its id."""
    _imports()
    with tempfile.TemporaryFile() as out:
        return _started(arguments, install, watch, out)


def _started(arguments: list[str], install: Install | None, watch: Watch | None, out: BinaryIO) -> Ended:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads: no lock of theirs is needed
        before, child = os.times(), os.fork()
    if child == 0:
        code = 4
        try:
            os.dup2(out.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # a test's own write elsewhere
            _in_one_process()
            if install is not None:
                install()
            code = _command(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    watcher = threading.Thread(target=watch, args=(child,)) if watch is not None else None
    if watcher is not None:
        watcher.start()
    killer = threading.Timer(DEADLINE_S, os.kill, (child, signal.SIGABRT))
    killer.start()
    status = os.waitpid(child, 0)[1]
    killer.cancel()
    if watcher is not None:
        watcher.join()
    after = os.times()
    out.seek(0)
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Ended(os.waitstatus_to_exitcode(status), out.read().decode("utf-8", "replace"), spent)


@cache
def _imports() -> None:
    """All that a run needs, so that children need not read it again. No thread is started here."""
    sys.path.append(str(PLUGINS))
    import torch

    torch.set_num_threads(1)
    importlib.import_module("trivial")
    import selfcest_training.config_file
    import selfcest_training.run.experiment  # noqa: F401


def _in_one_process() -> None:
    """Jobs in this process, one after the other, without plots."""
    from transformers.utils.logging import disable_progress_bar

    import selfcest_eval.report.run_report as run_report
    import selfcest_eval.report.study_report as report
    import selfcest_training.run.experiment as experiment

    disable_progress_bar()  # type: ignore[no-untyped-call]  # as a worker does

    def run_jobs(config: Any, jobs: Any, only_warm_start: bool, display: Any, stop: Any, evaluator: Any) -> None:
        experiment._stop = stop
        for job in jobs:
            experiment._run_job(config, job, only_warm_start, evaluator)

    experiment._run_jobs = run_jobs  # type: ignore[assignment]
    report.draw_frontiers = run_report.draw_learning_curves = lambda *_, **__: None  # type: ignore[assignment, attr-defined]


def _command(arguments: list[str]) -> int:
    import selfcest_cli.main as cli

    sys.argv = ["selfcest", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def train(output: Path, resume: bool = False) -> list[str]:
    """The command that trains under a folder."""
    path = output / "config.yaml"
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(RUN | {"output": str(output)}), encoding="utf-8")
    return ["train", "-c", str(path), *["--resume"] * resume]


def from_shell(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    """The same as a user starts it, with workers."""
    paths = [str(ROOT), str(ROOT / "agents"), str(ROOT / "training"), str(PLUGINS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "selfcest_cli", *arguments],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


# --- What a run has left ----------------------------------------------------------------------------------------------


def result_of(run: Path) -> dict[str, str]:
    """What must be the same bits, by name: weights, episodes, metrics and tables but for what a clock said."""
    job = run / JOB
    found = {
        name: _digest(job / name)
        for name in ("warmstart_model/model.safetensors", "model/model.safetensors", "episodes.jsonl")
    }
    rows = [{**row, "cpu_seconds": 0} for row in rows_of(job)]
    found["metrics.jsonl"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    with suppress(OSError), (run / "results.csv").open(encoding="utf-8") as file:
        table = [{**row, "wall_seconds": ""} for row in csv.DictReader(file)]
        found["results.csv"] = hashlib.sha256(json.dumps(table).encode()).hexdigest()
    for stage in ("evaluation", "evaluation_before_rl"):
        with suppress(OSError, ValueError):
            lines = [json.loads(line) for line in (job / stage / "results.jsonl").read_text().splitlines()]
            found[stage] = hashlib.sha256(json.dumps([_timeless(line) for line in lines]).encode()).hexdigest()
    found["checkpoints"] = " ".join(sorted(path.name for path in (job / "checkpoints").glob("*")))
    left = [path.name for path in run.rglob(".*") if path.name != ".lock"]
    left += [path.name for path in run.rglob("*.partial")]
    found["left behind"] = " ".join(sorted(left))
    return found


UNTIMED = ("wall_seconds", "sha256", "played", "key")  # what a clock or the folder's name decides


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in UNTIMED}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _digest(path: Path) -> str:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "gone"


def rows_of(job: Path) -> list[dict[str, Any]]:
    rows = []
    with suppress(OSError):
        for line in (job / "metrics.jsonl").read_bytes().splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
    return rows


def newest(job: Path) -> Path | None:
    """The newest checkpoint by name, whatever is in it."""
    found = sorted((job / "checkpoints").glob("rl_*")) or sorted((job / "checkpoints").glob("warmstart_*"))
    return found[-1] if found else None


def steps_behind(job: Path) -> int:
    """Steps and pools in metrics.jsonl that the newest checkpoint does not have: they are done again."""
    checkpoint, rows = newest(job), rows_of(job)
    learned = [row for row in rows if row.get("stage") == "rl"]
    pools = [row for row in rows if row.get("stage") == "warmstart"]
    if checkpoint is None:
        return len(learned) + len(pools)
    done = int(checkpoint.name.rpartition("_")[2])
    return len(learned) - done if checkpoint.name.startswith("rl") else len(learned) + max(0, len(pools) - done)


def learned(job: Path) -> int:
    """Steps and pools in metrics.jsonl."""
    return sum(row.get("stage") in ("rl", "warmstart") for row in rows_of(job))


def bytes_missing(job: Path) -> int:
    """Of what the newest checkpoint counts on: bytes of logs that are gone, and of its files that are not whole."""
    checkpoint = newest(job)
    if checkpoint is None:
        return 0
    try:
        contents = json.loads((checkpoint / "manifest.json").read_bytes())["contents"]
    except (OSError, ValueError, KeyError):
        return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    lost = 0
    for name, extent in contents["logs"].items():
        data = (job / name).read_bytes()[: extent["size"]] if (job / name).exists() else b""
        lost += extent["size"] - len(data)
        if len(data) == extent["size"] and hashlib.sha256(data).hexdigest() != extent["sha256"]:
            lost += len(data)
    for folder, known in ((checkpoint, contents["files"]), (job / "warmstart_model", contents["warm_start"])):
        for name, digest in known.items():
            path = folder / name
            lost += 0 if _digest(path) == digest else max(1, path.stat().st_size if path.exists() else 1)
    return lost


def tokens_off(job: Path) -> int:
    """Sampled tokens of RL by the account, less those in the episodes, their replays and what was given up."""
    rows = [row for row in rows_of(job) if row.get("stage") == "rl"]
    generated: Counter[int] = Counter()
    for line in (job / "episodes.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        if "=" in record["episode_id"]:  # a replay: its price is in the metrics
            continue
        step = int(record["episode_id"].split(".")[0][1:])
        generated[step] += sum(
            turn["facts"]["generated_tokens"] for agent in record["agents"] for turn in agent["turns"]
        )
    before = next((row["sampled_tokens"] for row in reversed(rows_of(job)) if row.get("stage") == "warmstart"), 0)
    off = 0
    for row in rows:
        found = generated[row["step"]] + row["lost_tokens"] + row["replayed_tokens"]
        off += abs(int(row["sampled_tokens"] - before - found))
        before = row["sampled_tokens"]
    return off


# --- Faults -----------------------------------------------------------------------------------------------------------


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def note(output: Path, what: str) -> None:
    """Say beside a run that something came about, so that a kill leaves it said."""
    with (output / "noted").open("a", encoding="utf-8") as file:
        file.write(what + "\n")


def noted(output: Path) -> list[str]:
    file = output / "noted"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def before_call(owner: Any, name: str, nth: int, act: Callable[[], None]) -> None:
    """Let something happen before the n-th call of a function."""
    function, count = getattr(owner, name), [0]

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] == nth + 1:
            act()
        return function(*arguments, **named)

    setattr(owner, name, wrapped)


def before_each(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Let something happen before every call of a function."""
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        act()
        return function(*arguments, **named)

    setattr(owner, name, wrapped)


def in_call(owner: Any, name: str, nth: int, touch: int, act: Callable[[], None]) -> None:
    """Let something happen at the n-th touch of a file inside the n-th call of a function, or when the call ends."""
    function, count, left = getattr(owner, name), [0], [-1]

    def touched(event: str, _: object) -> None:
        if left[0] > 0 and event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
            left[0] -= 1
            if left[0] == 0:
                left[0] = -1
                act()

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        ours = count[0] == nth + 1
        left[0] = touch if ours else left[0]
        found = function(*arguments, **named)
        if ours and left[0] > 0:
            left[0] = -1
            act()
        return found

    sys.addaudithook(touched)
    setattr(owner, name, wrapped)


def half_a_write(nth: int, act: Callable[[], None]) -> None:
    """Half of the n-th text that is appended to a log, and then something happens."""
    from selfcest_training.files import AppendLog

    append, count = AppendLog.append, [0]

    def wrapped(self: Any, text: str) -> None:
        count[0] += 1
        if count[0] == nth + 1:
            append(self, text[: len(text) // 2])
            act()
            append(self, text[len(text) // 2 :])
        else:
            append(self, text)

    AppendLog.append = wrapped  # type: ignore[method-assign]


PLACES = ("warm start", "rollout", "replays", "credit", "update", "checkpoint", "line of a log", "model", "evaluation",
          "report")  # fmt: skip
MOMENT = "random moment"


def place(name: str, rng: random.Random, output: Path, number: int) -> tuple[str, Install]:
    """Where in a place, in words, and what installs a signal there; it notes that the place was reached."""
    import selfcest_eval.report.run_report as run_report
    import selfcest_training.run.experiment as experiment
    import selfcest_training.run.job as job
    import selfcest_training.trainer as trainer
    from selfcest_training.learner.update import Learner

    nth, touch = rng.randrange(STEPS), rng.randrange(1, 45)

    def act() -> None:
        note(output, name)
        die(number)

    installs: dict[str, Install] = {
        "warm start": lambda: before_call(job.WarmStart, "step", nth % 2, act),
        "rollout": lambda: before_call(trainer.Trainer, "produce", nth, act),
        "replays": lambda: before_call(trainer, "replay_groups", nth, act),
        "credit": lambda: before_call(trainer, "assign_step_credit", nth, act),
        "update": lambda: before_call(Learner, "policy_step", nth, act),
        "checkpoint": lambda: in_call(job, "save_checkpoint", nth, touch, act),
        "line of a log": lambda: half_a_write(2 * nth, act),
        "model": lambda: in_call(job.Job, "_save", nth % 2, touch, act),
        "evaluation": lambda: in_call(run_report, "evaluate_job", nth % 2, touch, act),
        "report": lambda: in_call(experiment, "print_report", 0, touch % 6 + 1, act),
    }
    at = f" at file {touch}" if name in ("checkpoint", "model", "evaluation") else ""
    return f"in {name} {nth}{at}", installs[name]


def at_cpu(seconds: float, number: int) -> Watch:
    """Send a signal when a process has used so much CPU time."""

    def watch(process: int) -> None:
        while True:
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            if fields[0] == "Z":
                return
            if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= seconds:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
                return
            time.sleep(0.004)

    return watch


class Bench:
    """Undisturbed runs to compare with, made once in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def base(self) -> dict[str, Any]:
        """The end of an undisturbed run, its CPU time and its size."""
        file, output = self.folder / "base.json", self.folder / "base"
        if not file.exists():
            shutil.rmtree(output, ignore_errors=True)
            ended = start(train(output))
            if ended.code != 0:
                raise SystemExit(f"the undisturbed run ended with {ended.code}: {ended.said}")
            size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
            found = {"result": result_of(output / "run"), "cpu_s": ended.cpu_s, "size": size,
                     "steps": learned(output / "run" / JOB), "off": tokens_off(output / "run" / JOB)}  # fmt: skip
            if found["off"]:
                raise SystemExit(f"the undisturbed run's account is {found['off']} tokens off")
            file.write_text(json.dumps(found), encoding="utf-8")
        found = json.loads(file.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
        return found

    def half(self) -> Path:
        """What a run has left that was killed in an update half way; in a folder by the same name as any other's."""
        output = self.folder / "half"
        if not (output / "run").exists():
            from selfcest_training.learner.update import Learner

            kill = partial(die, signal.SIGKILL)
            ended = start(train(output), lambda: before_call(Learner, "policy_step", STEPS // 2, kill))
            if ended.code != -signal.SIGKILL:
                raise SystemExit(f"the run that was to be killed half way ended with {ended.code}: {ended.said}")
        return output

    @contextmanager
    def output(self, name: str, keep: bool = False) -> Iterator[Path]:
        path = self.folder / name.replace(":", "_")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            if not keep:
                shutil.rmtree(path, ignore_errors=True)

    def judge(self, fault: Fault, output: Path, ended: Ended) -> None:
        """A resumed run must have come to the same end."""
        fault.cpu_s += ended.cpu_s
        if not fault.claim(ended.code == 0, f"resumed to exit code {ended.code}: {ended.said[-300:]!r}"):
            fault.crashes += ended.code not in DOCUMENTED
            return
        expected, found = self.base()["result"], result_of(output / "run")
        differ = [name for name in expected if expected[name] != found.get(name)]
        if fault.claim(not differ, f"another end than undisturbed: {', '.join(differ)}"):
            fault.ended = "same bits"
        self.account(fault, output)

    def account(self, fault: Fault, output: Path) -> None:
        """The tokens of a run that is done, and the bytes of what its newest checkpoint counts on."""
        job = output / "run" / JOB
        fault.tokens_off = max(fault.tokens_off or 0, tokens_off(job))
        fault.bytes_lost = (fault.bytes_lost or 0) + bytes_missing(job)
        fault.claim(fault.tokens_off == 0, f"{fault.tokens_off} tokens lost or counted twice")
        fault.claim(fault.bytes_lost == 0, f"{fault.bytes_lost} bytes lost of what a checkpoint counts")

    def stopped(self, fault: Fault, ended: Ended, codes: tuple[int, ...]) -> None:
        """A process that was stopped says so in one line and no other way."""
        fault.cpu_s += ended.cpu_s
        allowed = ended.code in codes
        fault.crashes += not allowed and ended.code not in (0, *DOCUMENTED)
        fault.claim(allowed, f"exit code {ended.code}, expected one of {codes}: {ended.said[-300:]!r}")
        if ended.code in DOCUMENTED:
            fault.claim(ended.one_line, f"more than one line: {ended.said[-600:]!r}")

    def behind(self, fault: Fault, output: Path) -> None:
        """What the checkpoint that is there does not have."""
        job = output / "run" / JOB
        fault.steps_lost = max(fault.steps_lost or 0, steps_behind(job))
        fault.bytes_lost = (fault.bytes_lost or 0) + bytes_missing(job)
        fault.claim(fault.steps_lost <= 1, f"{fault.steps_lost} steps lost")
        fault.claim(fault.bytes_lost == 0, f"{fault.bytes_lost} bytes lost of what a checkpoint counts")


def kill(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    base, said = bench.base()["cpu_s"], []
    for turn in range(rng.choice((1, 1, 1, 1, 1, 3))):
        name = MOMENT if rng.random() < 0.4 else rng.choice(PLACES)
        if turn == 0 and fault.number <= len(PLACES):  # each at least once
            name = (*PLACES, MOMENT)[fault.number]
        command = train(output, resume=turn > 0)
        if name == MOMENT:
            seconds = rng.uniform(0.0, base)
            words = f"after {seconds:.2f} CPU-s"
            ended = start(command, watch=at_cpu(seconds, signal.SIGKILL))
        else:
            words, install = place(name, rng, output, signal.SIGKILL)
            ended = start(command, install)
        bench.stopped(fault, ended, (-signal.SIGKILL, 0))
        if ended.code != -signal.SIGKILL:
            break
        fault.hits.append(name)
        said.append(words)
        bench.behind(fault, output)
    fault.what = "SIGKILL " + ", then ".join(said)
    if fault.hits:
        bench.judge(fault, output, start(train(output, resume=True)))


def term(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    words, install = place(PLACES[fault.number % len(PLACES)], rng, output, signal.SIGTERM)
    fault.what = f"SIGTERM {words}"
    ended = start(train(output), install)
    fault.hits = noted(output)
    # What is done already ends well: the table is written all the same.
    bench.stopped(fault, ended, (STOPPED, 0))
    if not fault.hits:
        return
    bench.behind(fault, output)
    fault.claim(fault.steps_lost == 0, f"{fault.steps_lost} steps lost by SIGTERM")
    bench.judge(fault, output, start(train(output, resume=True)))


WHOLE = ("SIGKILL to the command", "SIGKILL to its worker alone", "SIGTERM to the command", "SIGTERM to all")
WHEN = ("checkpoints/warmstart_*", "checkpoints/rl_000001", "checkpoints/rl_000002")


def whole(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    """Signals to the command and to its worker, as a user starts them."""
    what, wait_for = WHOLE[fault.number % len(WHOLE)], WHEN[fault.number // len(WHOLE) % len(WHEN)]
    later = rng.uniform(0.0, 0.4)
    fault.what = f"{what} {later:.2f} s after {wait_for} is there"
    process = from_shell(train(output), start_new_session=True)
    deadline = time.monotonic() + DEADLINE_S
    while not list((output / "run" / JOB).glob(wait_for)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(later)
    targets = [process.pid] if what != WHOLE[1] else _workers(process.pid)
    if process.poll() is None and targets:
        fault.hits.append(what)
        if what == "SIGTERM to all":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            os.kill(targets[0], signal.SIGTERM if what.startswith("SIGTERM") else signal.SIGKILL)
    ended = _waited(process)
    if not fault.hits:
        fault.cpu_s += ended.cpu_s
        return
    bench.stopped(fault, ended, {WHOLE[0]: (-signal.SIGKILL,), WHOLE[1]: (3,)}.get(what, (STOPPED,)))
    time.sleep(2)  # workers whose parent was killed notice
    bench.behind(fault, output)
    bench.judge(fault, output, _waited(from_shell(train(output, resume=True))))


def _workers(command: int) -> list[int]:
    try:
        children = Path(f"/proc/{command}/task/{command}/children").read_text(encoding="utf-8").split()
        return [int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:  # it has ended
        return []


def _waited(process: subprocess.Popen[str]) -> Ended:
    before = os.times()
    _, said = process.communicate(timeout=DEADLINE_S)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Ended(process.returncode, said, spent)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None] | None]:
    """A file system of so many bytes on a folder; what grows it, or None where none can be mounted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    ).returncode  # fmt: skip
    if mounted != 0:
        yield None
        return
    try:
        yield lambda more: subprocess.run(["mount", "-o", f"remount,size={more}", str(folder)], check=True) and None
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disk(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    base = bench.base()
    size = int(rng.uniform(0.03, 0.99) * base["size"]) // 4096 * 4096 + 4096
    with small_disk(output, size) as grow:
        if grow is not None:
            fault.what = f"a tmpfs of {size // 1024} KiB"
            ended = start(train(output))
        else:
            size = rng.randrange(500, 40_000)
            fault.what = f"files of at most {size} bytes"
            command = train(output)
            ended = start(command, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)))
        bench.stopped(fault, ended, (3, 0))
        if ended.code == 0:
            return
        fault.hits.append(fault.what.partition(" of ")[0])
        bench.behind(fault, output)
        if grow is not None:
            grow(1 << 26)
        bench.judge(fault, output, start(train(output, resume=True)))


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def line(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.choice((b"\n", b"{}\n", b"null\n", b'{"stage": "rl"', b"\xff\xfe\n", b"[" * 9999 + b"\n")))


ROTS: dict[str, Callable[[Path, random.Random], None]] = {
    "a bit flipped in": flip, "cut": cut, "emptied": lambda path, _: os.truncate(path, 0),
    "deleted": lambda path, _: path.unlink(), "a line added to": line,
}  # fmt: skip


def rot(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    base = bench.base()
    done, how = fault.number % 3 == 2, tuple(ROTS)[fault.number % len(ROTS)]
    source = (bench.folder / "base" if done else bench.half()) / "run"
    run = output / "run"
    command = train(output, resume=True)
    shutil.copytree(source, run)
    # What a config names is its own folder: everything else is as it was.
    stored = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(stored.replace(str(source.parent), str(output)), encoding="utf-8")
    _adopt(run, output)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"
             and "tensorboard" not in path.parts]  # fmt: skip
    # Of each part of a run as often, however many files it has.
    part = rng.choice(sorted({str(path.relative_to(run).parent) for path in files}))
    chosen = rng.choice([path for path in files if str(path.relative_to(run).parent) == part])
    fault.what = f"{how} {chosen.relative_to(run)} of a run that {'is done' if done else 'was killed'}"
    once, were = chosen.read_bytes(), learned(run / JOB)
    ROTS[how](chosen, rng)
    if chosen.exists() and chosen.read_bytes() == once:
        return
    fault.hits.append(how)
    before = _all(run)
    ended = start(command, lambda: count_steps(output))
    refused = ended.code != 0
    if refused:
        bench.stopped(fault, ended, DOCUMENTED)
        after = _all(run)
        touched = {name for name in before | after if before.get(name) != after.get(name)}
        # A run that is refused may still have written its config again.
        touched -= {".lock", "errors.log", "config.yaml"}
        fault.claim(not touched, f"refused, and changed {sorted(touched)}")
        chosen.write_bytes(once)  # as the line asks for
        ended = start(command, lambda: count_steps(output))
    bench.judge(fault, output, ended)
    fault.steps_lost = were + noted(output).count("step") - base["steps"]
    fault.claim(0 <= fault.steps_lost <= 1, f"{fault.steps_lost} steps lost")
    if refused and not fault.findings:
        fault.ended = "one line"


def count_steps(output: Path) -> None:
    """Note every step and pool that is learned."""
    import selfcest_training.run.job as job
    import selfcest_training.trainer as trainer

    for owner in (trainer.Trainer, job.WarmStart):
        before_each(owner, "step", lambda: note(output, "step"))


def _adopt(run: Path, output: Path) -> None:
    """Checkpoints know their config by its digest, and a run's config knows its folder: make them those of a copy."""
    _imports()
    from selfcest_training.config_file import load_config, run_digest
    from selfcest_training.files import hash_text

    config = run_digest(load_config(output / "config.yaml", []))
    for path in run.glob("*/seed*/checkpoints/*/manifest.json"):
        contents = json.loads(path.read_bytes())["contents"] | {"config": config}
        signed = {"sha256": hash_text(json.dumps(contents)), "contents": contents}
        path.write_text(json.dumps(signed, indent=1), encoding="utf-8")


def _all(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


ENGINE = ("raises", "loses a request")


def engine(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    """Requests of training that are lost, or an engine that raises and takes the run with it."""
    bench.base()
    step, group, times = rng.randrange(STEPS), rng.randrange(4), (1, 2, 9)[fault.number // 3 % 3]
    raises = fault.number % 3 == 0
    lost = f"s{step}.g{group}.e{rng.randrange(4)}/root/turn0"
    fault.what = f"an engine that raises in step {step}" if raises else f"{lost} lost {times} times"

    def install() -> None:
        from selfcest_agents.engine import FailedRequest
        from selfcest_agents.transformers.engine import TransformersEngine
        from selfcest_env.errors import InfrastructureError

        poll, seen = TransformersEngine.poll, Counter[str]()

        def flaky(self: Any) -> Any:
            every = poll(self)
            if raises and any(done.key.startswith(f"s{step}.") for done in every):
                note(output, ENGINE[0])
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return [failed(done) for done in every]

        def failed(done: Any) -> Any:
            if raises or done.key != lost or seen[lost] >= times:
                return done
            seen[lost] += 1
            note(output, ENGINE[1])
            return FailedRequest(done.key, InfrastructureError(f"{done.key} failed 6 times, at last by 503"))

        TransformersEngine.poll = flaky  # type: ignore[method-assign]

    ended = start(train(output), install)
    fault.hits, job = list(dict.fromkeys(noted(output))), output / "run" / JOB
    bench.stopped(fault, ended, (3,) if raises and fault.hits else (0,))
    if not fault.hits or fault.findings:
        return
    bench.behind(fault, output)
    if raises:
        bench.judge(fault, output, start(train(output, resume=True)))
        return
    fault.failed = {"lost by the engine": len(noted(output))}
    rows = [row for row in rows_of(job) if row["stage"] == "rl"]
    counts = [(int(row["dropped_groups"]), int(row["infrastructure_failures"])) for row in rows]
    expected = [(int(times > 3), min(times, 3)) if at == step else (0, 0) for at in range(STEPS)]
    fault.claim(counts == expected, f"dropped and failed {counts}, expected {expected}")
    fault.claim(len(noted(output)) == min(times, 3), f"{len(noted(output))} requests lost")
    bench.account(fault, output)
    if not fault.findings:
        fault.ended = "counted"


HOW = ("500", "429", "hang up", "babble", "drip", "huge", "half", "list")


@contextmanager
def serving(
    rng: random.Random, share: float = 0.0, hopeless: str | None = None, until: float = math.inf, port: int = 0
) -> Iterator[tuple[int, Counter[str]]]:
    """A server whose answers are a function of the request; gives its port, and counts requests answered and failed.

    It fails that share of tries in any way, always those with the text `hopeless`, and all after so many answers.
    """
    seen, lock = Counter[str](), threading.Lock()
    never = None if hopeless is None else re.compile(rf"(?<!\d){re.escape(hopeless)}")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            messages = json.loads(body)["messages"]
            text = str(messages[-1]["content"])
            with lock:
                down = seen["answered"] >= until
                how = "hang up" if down else rng.choice(HOW)
                lucky = rng.random() >= share and not down and not (never and never.search(text))
                seen["answered" if lucky else how] += 1
            said = "Answer: 1" if hashlib.sha256(text.encode()).digest()[0] % 3 else "Answer: 2"
            found = {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
                     "usage": {"completion_tokens": 3, "prompt_tokens": 1}}  # fmt: skip
            answer = json.dumps(found).encode()
            if lucky:
                return self.send(200, answer)
            with suppress(OSError):
                self.fail(how, answer)

        def fail(self, how: str, answer: bytes) -> None:
            if how == "hang up":
                self.connection.shutdown(socket.SHUT_RDWR)
            elif how in ("500", "429"):
                self.send(int(how), b'{"error": "busy"}')
            elif how == "babble":
                self.send(200, b"<html>busy</html>")
            elif how == "list":
                self.send(200, b"[" * 50_000)
            elif how == "huge":
                self.send(200, answer + b" " * (1 << 18))
            elif how == "half":
                self.send(200, answer[: len(answer) // 2], len(answer))
            else:
                self.send(200, b"", len(answer))
                for byte in answer:
                    self.wfile.write(bytes((byte,)))
                    time.sleep(0.02)

        def send(self, status: int, body: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # a client that gave up waiting

    http = Quiet(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield http.server_port, seen
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def study(output: Path, port: int, resume: bool = False) -> list[str]:
    server = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "m", "timeout_s": 0.5, "max_retries": 6,
              "backoff_s": 0.001, "max_answer_bytes": 1 << 16}  # fmt: skip
    data = STUDY | {"output": str(output), "policy": {"name": "server", "options": {"server": server}}}
    path = output / "study.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return ["evaluate", "-c", str(path), *["--resume"] * resume]


@dataclass
class Played:
    """What a study has in its results: lines by their place, and why it lacks others."""

    found: dict[str, Any] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    shared: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, output: Path) -> Played:
        played = cls()
        for text in (output / "study" / "results.jsonl").read_text(encoding="utf-8").splitlines():
            value = _timeless(json.loads(text))
            if "shared" in value:
                played.shared.append(value)
            elif "unplayable" in value:
                played.lost.add(json.dumps(value["unplayable"]["place"] if "place" not in value else value["place"]))
            else:
                played.found[json.dumps(value["place"])] = value
        return played

    def generated(self) -> dict[str, int]:
        """Tokens that policies generated; perfect players ask no server."""
        return {at: one["costs"]["generated_tokens"] for at, one in self.found.items() if not one["place"]["style"]}


SERVER = ("tries fail", "one question fails always", "down for good")
ANSWER_TOKENS = 3  # that the server says it has generated


def server(bench: Bench, fault: Fault, output: Path, rng: random.Random) -> None:
    """A study by a server that fails, beside the same by one that does not."""
    way, share = SERVER[fault.number % len(SERVER)], rng.choice((0.2, 0.4))
    calm, wild = output / "calm", output / "wild"
    calm.mkdir()
    wild.mkdir()
    with serving(rng) as (port, asked):
        ended = start(study(calm, port))
    fault.cpu_s += ended.cpu_s
    if not fault.claim(ended.code == 0, f"the undisturbed study ended with {ended.code}: {ended.said[-300:]!r}"):
        return
    expected = Played.of(calm)
    fault.tokens_off = abs(sum(expected.generated().values()) - ANSWER_TOKENS * asked["answered"])
    if way == SERVER[2]:
        until = rng.randrange(2, 16)  # of 24 answers: too few for either strategy
        fault.what = f"down after {until} answers"
        answered = _down(bench, fault, wild, rng, until)
        fault.tokens_off += ANSWER_TOKENS * abs(answered - asked["answered"])  # none asked for twice
        hopeless = None
    else:
        prompts = sorted(one["value"]["prompt"] for one in expected.shared if "prompt" in one["value"])
        hopeless = rng.choice(prompts) if way == SERVER[1] else None
        fault.what = f"{share:.0%} of tries fail" + (f", {hopeless!r} always" if hopeless else "")
        with serving(rng, share, hopeless) as (port, seen):
            ended = start(study(wild, port))
        _failed(fault, seen)
        bench.stopped(fault, ended, (0,))
    if not fault.failed:
        return
    fault.hits.append(way)
    if fault.findings:
        return
    found = Played.of(wild)
    gone = {at for at in expected.found if hopeless and _task(at) == _task_of(hopeless) and _of_policy(at)}
    fault.claim(found.lost == gone, f"left out {sorted(found.lost)}, expected {sorted(gone)}")
    rest = {at: one for at, one in expected.found.items() if at not in gone}
    fault.claim(found.found == rest, "results are other than undisturbed")
    were, are = expected.generated(), found.generated()
    fault.tokens_off += sum(abs(were[at] - are.get(at, 0)) for at in were if at not in gone)
    fault.claim(fault.tokens_off == 0, f"{fault.tokens_off} tokens lost or counted twice")
    _check_report(fault, wild / "study", expected, hopeless)
    if not fault.findings:
        fault.ended = "one line" if way == SERVER[2] else "counted" if gone else "same bits"


def _task(at: str) -> str:
    return str(json.loads(at)["task_id"])


def _task_of(prompt: str) -> str:
    return f"choice-{prompt.removesuffix('?')}"


def _of_policy(at: str) -> bool:
    return not json.loads(at)["style"]


def _failed(fault: Fault, seen: Counter[str]) -> None:
    fault.failed = dict(Counter(fault.failed or {}) + Counter({how: n for how, n in seen.items() if how != "answered"}))


def _down(bench: Bench, fault: Fault, output: Path, rng: random.Random, until: int) -> int:
    """A server that goes down, is down when the study is resumed, and is well again. Returns how often it answered."""
    with serving(rng, until=until) as (port, seen):
        bench.stopped(fault, start(study(output, port)), (3,))
    _failed(fault, seen)
    answered, before = seen["answered"], _all(output)
    with serving(rng, until=0, port=port) as (_, seen):
        bench.stopped(fault, start(study(output, port, resume=True)), (3,))
    _failed(fault, seen)
    after = _all(output)
    touched = {name for name in before | after if before.get(name) != after.get(name)}
    logs = (".lock", "errors.log", "sessions.jsonl", "servers.jsonl")  # which say that it was tried
    touched -= {f"study/{name}" for name in logs}
    fault.claim(not touched, f"exit code 3, and changed {sorted(touched)}")
    with serving(rng, port=port) as (_, seen):
        bench.stopped(fault, start(study(output, port, resume=True)), (0,))
    return answered + seen["answered"]


def _check_report(fault: Fault, folder: Path, expected: Played, hopeless: str | None) -> None:
    """The report says what is left out, and leaves it out of every strategy."""
    text = (folder / "table.md").read_text(encoding="utf-8")
    lost, gone = int(hopeless is not None), None if hopeless is None else _task_of(hopeless)
    counts = [(str(lost), str(STUDY["episodes"]))] * lost
    said = re.findall(r"choice any: (\d+) of (\d+) instances could not be played and are left out of every", text)
    fault.claim(said == counts, f"the report says {said} of what was left out, not {counts}")
    each = re.findall(r"choice any, .*: (\d+) of (\d+) not played; accuracy", text)
    fault.claim(each == counts * len(STUDY["strategies"]), f"the report says {each} not played, not {counts} of each")
    with (folder / "results.csv").open(encoding="utf-8") as file:
        rows = {row["strategy"]: (int(row["instances"]), float(row["accuracy"])) for row in csv.DictReader(file)}
    for name in STUDY["strategies"]:
        played = [one for at, one in expected.found.items() if _of_policy(at) and _task(at) != gone]
        right = [one["grade"]["correct"] for one in played if one["place"]["strategy"] == name]
        instances, accuracy = rows.get(name, (0, math.nan))
        holds = instances == len(right) == STUDY["episodes"] - lost
        holds = holds and math.isclose(accuracy, sum(right) / len(right), abs_tol=1e-5)
        fault.claim(holds, f"the table has {name} on {instances} instances at {accuracy}, not on {len(right)} played")


INJECT: dict[str, Callable[[Bench, Fault, Path, random.Random], None]] = {
    "kill": kill, "term": term, "whole": whole, "disk": disk, "rot": rot, "engine": engine, "server": server
}  # fmt: skip


# What the plan hits, each at least once.
AIMS: dict[str, tuple[str, ...]] = {
    "kill": (*PLACES, MOMENT), "term": PLACES, "whole": WHOLE, "rot": tuple(ROTS), "engine": ENGINE, "server": SERVER
}  # fmt: skip


def inject(bench: Bench, kind: str, number: int, keep: bool = False) -> Fault:
    """One fault; everything random in it follows from its name. It is drawn again until it comes about."""
    again, cpu_s = 0, 0.0
    while True:
        fault = Fault(kind, number, drawn_again=again)
        with bench.output(fault.name, keep) as output:
            try:
                _imports()
                INJECT[kind](bench, fault, output, random.Random(f"faults {kind} {number} {again}"))
            except Exception as error:
                fault.findings.append("".join(traceback.format_exception_only(error)).strip())
                traceback.print_exc()
        cpu_s += fault.cpu_s
        fault.cpu_s = cpu_s
        if fault.hits or fault.findings:
            break
        again += 1
        if again == DRAWS:
            fault.findings.append(f"no fault came about in {DRAWS} draws")
            break
    if not fault.ended and not fault.findings:
        fault.findings.append("ended in no way that is promised")
    return fault


# --- What a checkpoint costs ------------------------------------------------------------------------------------------


def checkpoint_cost(folder: Path, steps: int = 12) -> dict[str, Any]:
    """CPU and wall time of a checkpoint and of a step of RL, of the newcomer's config, of its variant that has RL."""
    _imports()
    import selfcest_training.run.job as job
    import selfcest_training.trainer as trainer
    from selfcest_training.config_file import load_config
    from selfcest_training.run.experiment import default_config

    spent: dict[str, list[tuple[float, float]]] = {"step": [], "save": []}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            found = function(*arguments, **named)
            spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            return found

        return wrapped

    trainer.Trainer.step = timed("step", trainer.Trainer.step)  # type: ignore[method-assign]
    short = [
        "variants.deciding.warmstart.phases.0.tokens=60000", "variants.deciding.warmstart.max_attempts=1",
        f"variants.deciding.rl.steps={steps}", "checkpoint_every=1", f"output={folder}",
    ]  # fmt: skip
    config = load_config(default_config(), short)
    one = job.Job(config, job.JobId("deciding", 0), lambda *_: None)
    save = job.save_checkpoint
    one.run(lambda: setattr(job, "save_checkpoint", timed("save", save)))
    job.save_checkpoint = save
    size = sum(path.stat().st_size for path in (newest(one.folder) or folder).rglob("*"))
    median = {name: sorted(pair[0] for pair in found)[len(found) // 2] for name, found in spent.items()}
    wall = {name: sorted(pair[1] for pair in found)[len(found) // 2] for name, found in spent.items()}
    return {
        "config": default_config().name,
        "arm": "deciding",
        "steps": len(spent["step"]),
        "step_cpu_s": round(median["step"], 4),
        "checkpoint_cpu_s": round(median["save"], 4),
        "share_cpu": round(median["save"] / median["step"], 4),
        "step_wall_s": round(wall["step"], 3),
        "checkpoint_wall_s": round(wall["save"], 3),
        "share_wall": round(wall["save"] / wall["step"], 4),
        "checkpoint_bytes": size,
        "checkpoint_every": load_config(default_config(), []).checkpoint_every,
    }


# --- The whole --------------------------------------------------------------------------------------------------------


def stored(store: Path) -> Iterator[Fault]:
    for text in store.read_text(encoding="utf-8").splitlines() if store.exists() else ():
        with suppress(ValueError):
            yield Fault(**json.loads(text))


MEASURES = ("steps_lost", "tokens_off", "bytes_lost")


def summary(faults: list[Fault], cost: Mapping[str, Any] | None) -> dict[str, Any]:
    """The evidence: small, and all that the page needs. What no fault of a kind has measured is `None`."""
    kinds = {}
    for kind in PLAN:
        mine = [fault for fault in faults if fault.kind == kind]
        if mine:
            known = {name: [of for fault in mine if (of := getattr(fault, name)) is not None] for name in MEASURES}
            failed = [Counter(fault.failed) for fault in mine if fault.failed is not None]
            kinds[kind] = {
                "runs": len(mine),
                "injected": sum(len(fault.hits) for fault in mine),
                "failed": dict(sorted(sum(failed, Counter[str]()).items())) if failed else None,
                "survived": sum(not fault.findings for fault in mine),
                "ended": dict(sorted(Counter(fault.ended or "finding" for fault in mine).items())),
                **{name: (max if name == "steps_lost" else sum)(of) if of else None for name, of in known.items()},
                "measured": {name: len(of) for name, of in known.items()},
                "crashes": sum(fault.crashes for fault in mine),
                "drawn_again": sum(fault.drawn_again for fault in mine),
                "hits": dict(Counter(hit for fault in mine for hit in fault.hits).most_common()),
                "not_hit": [aim for aim in AIMS.get(kind, ()) if not any(aim in fault.hits for fault in mine)],
                "cpu_s": round(sum(fault.cpu_s for fault in mine), 1),
            }
    return {
        "runs": len(faults),
        "cpu_s": round(sum(fault.cpu_s for fault in faults), 1),
        "steps": STEPS,
        "checkpoint_every": RUN["checkpoint_every"],
        "findings": [f"{fault.name} ({fault.what}): {text}" for fault in faults for text in fault.findings],
        "checkpoint": cost,
        "kinds": kinds,
        "faults": [[fault.name, fault.what, fault.ended] for fault in faults],
    }


def main() -> int:
    from reliability import commit, written

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("runs/faults"), help="where runs are and what they came to")
    parser.add_argument("--out", type=Path, default=EVIDENCE)
    parser.add_argument("--only", help="one fault again, as KIND:NUMBER")
    parser.add_argument("--share", type=float, default=1.0, help="of the plan; 0 only writes what there is")
    parser.add_argument("--cost", action="store_true", help="only measure what a checkpoint costs of a step")
    given = parser.parse_args()
    given.store.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.store.resolve())
    if given.only:
        kind, number = given.only.split(":")
        fault = inject(bench, kind, int(number), keep=True)
        print(json.dumps(asdict(fault), indent=1))
        return int(bool(fault.findings))
    there_is = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    if given.cost:
        with tempfile.TemporaryDirectory(dir=given.store) as folder:
            cost = {"commit": commit(), **checkpoint_cost(Path(folder).resolve())}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(there_is | {"checkpoint": cost}, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(cost, indent=1))
        return 0
    file, faults = given.store / "faults.jsonl", list(stored(given.store / "faults.jsonl"))
    there = {fault.name for fault in faults}
    todo = [(kind, i) for kind, count in PLAN.items() for i in range(math.ceil(count * given.share))]
    todo = [(kind, i) for kind, i in todo if f"{kind}:{i}" not in there]
    random.Random(0).shuffle(todo)
    for kind, number in todo:
        fault = inject(bench, kind, number)
        faults.append(fault)
        with file.open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(fault)) + "\n")
        ended = f"{fault.ended or 'FINDING'}, {fault.cpu_s:.1f} CPU-s, drawn again {fault.drawn_again} times"
        print(f"{fault.name} {fault.what}: {ended}", flush=True)
        for text in fault.findings:
            print(f"  FINDING {text}; repeat it with --only {fault.name}", flush=True)
    order = {kind: place for place, kind in enumerate(PLAN)}
    faults.sort(key=lambda fault: (order[fault.kind], fault.number))
    found = summary(faults, there_is.get("checkpoint"))
    written(given.out, found)
    print(json.dumps({name: found[name] for name in ("runs", "cpu_s", "findings")}, indent=1))
    missed = {kind: of["not_hit"] for kind, of in found["kinds"].items() if of["not_hit"]}
    if missed:
        print(f"not hit: {missed}")
    return int(bool(found["findings"] or (missed and given.share >= 1)))


if __name__ == "__main__":
    sys.exit(main())
