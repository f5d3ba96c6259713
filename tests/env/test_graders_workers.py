"""Workers are killed when the time is up, start again, say loudly when they cannot judge, and end with their parent."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfcest_env.errors import WorkerError
from selfcest_env.graders import Grade, math
from selfcest_env.graders.math import MathMatch
from selfcest_env.graders.workers import Worker, WorkerPool, WorkerResult
from selfcest_env.types import Task

SOURCE = """
import os, signal, sys, time
from selfcest_env.graders.workers import serve

def load():
    def work(request):
        if request == "hang":
            time.sleep(600)
        if isinstance(request, dict) and "lives" in request:
            # Each process that is asked takes a life; the last one answers.
            lives = open(request["lives"], "r+")
            left = int(lives.read())
            if left:
                lives.seek(0)
                lives.write(str(left - 1))
                lives.flush()
                os.kill(os.getpid(), request["signal"])
            return "alive"
        if request == "loud":
            print("not a result", flush=True)
        if request == "huge":
            bytearray(64 << 30)
        if request == "raise":
            raise KeyError("secret")
        if request == "deep":
            return (lambda f: f(f))(lambda f: f(f))
        return [request, os.getpid()]
    return work

serve(load)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    (tmp_path / "hostile_worker.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    worker = Worker("hostile_worker")
    yield worker
    worker.close()


def test_a_worker_is_one_process_for_many_requests(worker: Worker) -> None:
    first, second = worker.ask("a", 20), worker.ask({"b": "é\n"}, 20)
    assert (first.value[0], second.value[0]) == ("a", {"b": "é\n"})
    assert first.value[1] == second.value[1] != os.getpid()


def test_what_hangs_is_killed_and_what_dies_is_replaced(worker: Worker) -> None:
    before = worker.ask("a", 20).value[1]
    start = time.monotonic()
    assert worker.ask("hang", 0.3) == WorkerResult(failure="timeout")
    assert time.monotonic() - start < 5
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    after = worker.ask("a", 20)
    assert after.value[0] == "a"
    assert after.value[1] != before


def lives(tmp_path: Path, count: int, by: signal.Signals) -> dict[str, object]:
    (tmp_path / "lives").write_text(str(count))
    return {"lives": str(tmp_path / "lives"), "signal": int(by)}


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_after_a_death_a_fresh_worker_is_asked_once_more(worker: Worker, tmp_path: Path, by: signal.Signals) -> None:
    assert worker.ask(lives(tmp_path, 1, by), 20) == WorkerResult("alive")


def test_who_dies_twice_from_outside_has_judged_nothing(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError,
        match=r"hostile_worker: ended twice on one request; the last one was killed by signal 9 \(SIGKILL\)",
    ):
        worker.ask(lives(tmp_path, 2, signal.SIGKILL), 20)
    assert worker.ask("a", 20).value[0] == "a"


def test_what_crashes_two_workers_is_to_blame_itself(worker: Worker, tmp_path: Path) -> None:
    assert worker.ask(lives(tmp_path, 2, signal.SIGABRT), 20) == WorkerResult(failure="crash")
    assert worker.ask("a", 20).value[0] == "a"


def test_who_is_killed_between_two_requests_is_replaced(worker: Worker) -> None:
    os.kill(worker.ask("a", 20).value[1], signal.SIGKILL)
    assert worker.ask("b", 20).value[0] == "b"


def test_who_is_killed_while_it_starts_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "killed_worker.py").write_text(
        "import os, pathlib\nfrom selfcest_env.graders.workers import serve\n"
        f"once = pathlib.Path({str(tmp_path / 'once')!r})\n"
        "if not once.exists():\n    once.touch()\n    os.kill(os.getpid(), 9)\n"
        "serve(lambda: str)\n"
    )
    worker = Worker("killed_worker")
    assert worker.ask(5, 20) == WorkerResult("5")
    worker.close()


def test_errors_prints_and_memory_stay_in_the_worker(worker: Worker) -> None:
    process = worker.ask("a", 20).value[1]
    assert worker.ask("raise", 20) == WorkerResult(failure="KeyError")
    assert worker.ask("huge", 20) == WorkerResult(failure="MemoryError")
    assert worker.ask("deep", 20) == WorkerResult(failure="RecursionError")
    assert worker.ask("loud", 20).value == ["loud", process]


def test_a_closed_worker_is_gone(worker: Worker) -> None:
    process = worker.ask("a", 20).value[1]
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking_worker.py").write_text(
        "from selfcest_env.graders.workers import serve\ndef load():\n    import no_such_library\nserve(load)\n"
    )
    (tmp_path / "broken_worker.py").write_text("raise SystemExit('no licence')\n")
    with pytest.raises(WorkerError, match=r"lacking_worker did not start.*No module named 'no_such_library'"):
        Worker("lacking_worker").ask("a", 20)
    with pytest.raises(WorkerError, match="broken_worker did not start: it ended; its output: no licence"):
        Worker("broken_worker").ask("a", 20)


def test_threads_share_a_pool(worker: Worker) -> None:
    pool = WorkerPool(worker.module, size=2)
    found: list[object] = []
    threads = [threading.Thread(target=lambda i=i: found.append(pool.ask(i, 20).value[0])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert sorted(found) == list(range(8))  # type: ignore[type-var]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """The grader with a worker of another kind: it starts slowly and holds all for equal."""
    (tmp_path / "slow_worker.py").write_text(
        "import os, pathlib, time\nfrom selfcest_env.graders.workers import serve\n\n"
        "def load():\n    time.sleep(1)\n    return work\n\n"
        "def work(request):\n"
        "    if 'hang' in request['answer']:\n        time.sleep(600)\n"
        "    if 'killed' in request['answer']:\n        os.kill(os.getpid(), 9)\n"
        "    return True\n\n"
        "serve(load)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(math, "_SYMBOLIC", "slow_worker")
    yield MathMatch
    math.shared_pool("slow_worker").close()


@pytest.mark.slow
def test_a_right_answer_does_not_wait_at_its_own_cost(judge: type[MathMatch]) -> None:
    """The start of the worker takes longer than the time for the answer, which has two parts to ask about."""
    task = Task("t", "", r"\sqrt2,\sqrt3", "math")
    assert judge(timeout_s=0.8).grade(task, r"\sqrt{2}, 3/\sqrt3") == Grade(1.0, True, True)
    # Nor at that of its place in the queue: all ask one worker at once, which has just been killed.
    math.shared_pool("slow_worker").close()
    grades: list[Grade] = []
    threads = [
        threading.Thread(target=lambda: grades.append(judge(timeout_s=0.8).grade(task, r"\sqrt{2}, 3/\sqrt3")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grades == [Grade(1.0, True, True)] * 4


@pytest.mark.slow
def test_what_hangs_is_wrong_and_what_was_not_judged_is_no_score(judge: type[MathMatch]) -> None:
    task = Task("t", "", r"\sqrt2", "math")
    timeout = Grade(0.0, False, True, "symbolic comparison: timeout")
    assert judge(timeout_s=0.8).grade(task, r"\mathrm{hang}2") == timeout
    with pytest.raises(
        WorkerError, match="worker slow_worker: ended twice on one request; the last one was killed by signal 9"
    ):
        judge(timeout_s=0.8).grade(task, r"\mathrm{killed}2")


PARENT = """
import os, sys, threading, time
from selfcest_env.graders.workers import Worker

worker = Worker("orphan_worker")
worker.ask("ready", 20)
if sys.argv[1] == "fork" and os.fork() == 0:
    time.sleep(3)  # holds the pipe open: the worker sees no end of its input
    os._exit(0)
threading.Thread(target=worker.ask, args=(sys.argv[1], 50), daemon=True).start()
time.sleep(0.2)
print("asked", flush=True)
time.sleep(600)
"""
ORPHAN = """
import fcntl, sys, time
from selfcest_env.graders.workers import serve

lock = open(__file__ + ".lock", "w")

def load():
    fcntl.flock(lock, fcntl.LOCK_EX)
    return work

def work(request):
    if request == "sleep":
        time.sleep(600)
    if request == "loop":
        while True:
            pass
    if request == "power":
        9 ** 9 ** 9
    return request

serve(load)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("doing", ["fork", "sleep", "loop", "power"])
def test_a_worker_ends_within_a_second_of_its_parent(tmp_path: Path, doing: str, by: signal.Signals) -> None:
    (tmp_path / "orphan_worker.py").write_text(ORPHAN)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, doing], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"asked\n"
    with (tmp_path / "orphan_worker.py.lock").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        parent.send_signal(by)
        parent.wait()
        end = time.monotonic() + 2.0  # a second, and one for a busy machine
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
        else:
            pytest.fail("the worker lives on")
    parent.stdout.close()


@pytest.mark.slow
def test_a_hostile_answer_costs_its_time_limit_and_no_more() -> None:
    pytest.importorskip("math_verify")
    grader, task = MathMatch(timeout_s=1.0), Task("t", "", r"\sqrt2", "math")
    assert grader.grade(task, r"\frac{2}{\sqrt2}").correct  # the worker is warm
    start = time.monotonic()
    grade = grader.grade(task, r"\boxed{9^{9^{9^9}}\sqrt{2}}")
    assert time.monotonic() - start < 60  # without a limit it would take hours
    assert (grade.correct, grade.note) == (False, "symbolic comparison: timeout")
    assert grader.grade(task, r"\frac{2}{\sqrt2}").correct


@pytest.mark.slow
def test_the_time_limit_is_for_all_parts_of_an_answer() -> None:
    pytest.importorskip("math_verify")
    grader, task = MathMatch(timeout_s=1.0), Task("t", "", ",".join(rf"\sqrt{n}" for n in "235678"), "math")
    grader.grade(task, "x")
    start = time.monotonic()
    grade = grader.grade(task, ",".join(rf"9^{{9^{{9^{n}}}}}\sqrt{{2}}" for n in "456789"))
    assert time.monotonic() - start < 60  # without a limit it would take hours
    assert grade.note == "symbolic comparison: timeout"
