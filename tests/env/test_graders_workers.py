"""Workers are killed when the time is up, start again, and say loudly when they cannot start."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfcest_env.errors import WorkerError
from selfcest_env.graders.math import MathMatch
from selfcest_env.graders.workers import Result, Worker, WorkerPool
from selfcest_env.types import Task

SOURCE = """
import os, time
from selfcest_env.graders.workers import serve

def load():
    def work(request):
        if request == "hang":
            time.sleep(600)
        if request == "die":
            os._exit(3)
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
    assert worker.ask("hang", 0.3) == Result(failure="timeout")
    assert time.monotonic() - start < 5
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    after = worker.ask("a", 20)
    assert after.value[0] == "a"
    assert after.value[1] != before
    assert worker.ask("die", 20) == Result(failure="died")
    assert worker.ask("a", 20).value[0] == "a"


def test_errors_prints_and_memory_stay_in_the_worker(worker: Worker) -> None:
    process = worker.ask("a", 20).value[1]
    assert worker.ask("raise", 20) == Result(failure="KeyError")
    assert worker.ask("huge", 20) == Result(failure="MemoryError")
    assert worker.ask("deep", 20) == Result(failure="RecursionError")
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
    with pytest.raises(WorkerError, match="broken_worker did not start: it ended, saying: no licence"):
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


def test_a_hostile_answer_costs_its_time_limit_and_no_more() -> None:
    pytest.importorskip("math_verify")
    grader, task = MathMatch(timeout_s=1.0), Task("t", "", r"\sqrt2", "math")
    assert grader.grade(task, r"\frac{2}{\sqrt2}").correct  # the worker is warm
    start = time.monotonic()
    grade = grader.grade(task, r"\boxed{9^{9^{9^9}}\sqrt{2}}")
    assert time.monotonic() - start < 60  # without a limit it would take hours
    assert (grade.correct, grade.note) == (False, "symbolic comparison: timeout")
    assert grader.grade(task, r"\frac{2}{\sqrt2}").correct


def test_the_time_limit_is_for_all_parts_of_an_answer() -> None:
    pytest.importorskip("math_verify")
    grader, task = MathMatch(timeout_s=1.0), Task("t", "", ",".join(rf"\sqrt{n}" for n in "235678"), "math")
    grader.grade(task, "x")
    start = time.monotonic()
    grade = grader.grade(task, ",".join(rf"9^{{9^{{9^{n}}}}}\sqrt{{2}}" for n in "456789"))
    assert time.monotonic() - start < 60  # without a limit it would take hours
    assert grade.note == "symbolic comparison: timeout"
