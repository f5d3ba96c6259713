"""A run: every variant with every seed as a job of its own, two at a time, then the table."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from selfcest_env.errors import ConfigError, RecordError, SelfcestError, StoppedError, signal_name
from selfcest_training.cluster.connection import connected
from selfcest_training.cluster.ray_ranks import RayRanks
from selfcest_training.config import RunConfig
from selfcest_training.config_file import (
    describe_differences,
    dump_run,
    find_shipped_config,
    load_stored_config,
    run_digest,
)
from selfcest_training.faults import ENDING_SIGNALS, LOG, describe_first_end, log_faults
from selfcest_training.files import check_kind, write_text
from selfcest_training.lock import lock_folder
from selfcest_training.planning.memory import check_device
from selfcest_training.run.checkpoint import WARM_START, checkpoints, newest_whole, read_manifest
from selfcest_training.run.display import EVERY, Display, print_report
from selfcest_training.run.evaluator import EvaluationStage, Evaluator
from selfcest_training.run.job import FINAL_MODEL, LOGS, Job, JobId
from selfcest_training.run.progress import DONE, PROGRESS, ProgressFile
from selfcest_training.run.shared_warmstart import hand_over, shared_warm_starts
from selfcest_training.session import SESSIONS, record_session

MOST_DIFFERENCES = 4  # keys of two configs that an error names
RUN_FILES = ("config.yaml", "table.md", "results.csv")
RESULT_FILES = ("results.jsonl", "played.jsonl")  # of an evaluation's folder


class _Flag(Protocol):
    """Set if `value` is not 0."""

    value: int


_stop: _Flag | None = None


def run(
    config: RunConfig,
    *,
    resume: bool,
    only_warm_start: bool = False,
    console: Console | None = None,
    evaluator: Evaluator | None = None,
) -> None:
    """Train and evaluate every variant with every seed, and write the table.

    With `only_warm_start` the variants end before RL, and what is evaluated is the policy that RL would begin with.
    Without an evaluator the run only trains.

    Raises:
        ConfigError: the folder holds another run, is in use or cannot be written, a plug-in does not load, or weights
            alone are more than the GPU has; before any work.
    """
    check_device(config)
    for variant in config.variants:
        Job(config, JobId(variant, config.seeds[0]), lambda *_: None)  # whatever cannot be built fails here
    evaluator = evaluator or Evaluator()
    evaluator.check(config)  # nor does a cell without enough instances wait for the warm start
    with _machines(config) as ready, lock_folder(config.folder), log_faults(config.folder):
        _run(ready, resume, only_warm_start, console or Console(), evaluator)


@contextmanager
def _machines(config: RunConfig) -> Iterator[RunConfig]:
    """The config with the address of the cluster that all jobs join, one after another, if it has one."""
    if config.cluster is None:
        yield config
        return
    with connected(config.cluster) as cluster:
        yield replace(config, cluster=cluster)


def _run(config: RunConfig, resume: bool, only_warm_start: bool, console: Console, evaluator: Evaluator) -> None:
    jobs = [JobId(variant, seed) for seed in config.seeds for variant in config.variants]
    try:
        check_layout(config, jobs)
        prepare(config, resume)
        check_files(config, jobs, evaluator)
        for job in jobs:  # what an earlier start has said of them
            (config.folder / str(job) / PROGRESS).unlink(missing_ok=True)
        with _stop_on_signal() as stop:
            with record_session(config.folder, config.cluster), Display(config, console) as display:
                shared = shared_warm_starts(config)
                _run_jobs(config, list(shared), True, display, stop, evaluator)
                for leader, followers in shared.items():
                    for follower in followers:
                        hand_over(config, leader, follower)
                _run_jobs(config, jobs, only_warm_start, display, stop, evaluator)
            print_report(config, console, evaluator)  # with nothing left to play: who is asked to stop here finishes
    except PermissionError as error:  # no other try goes better
        raise ConfigError(
            f"{error.filename or config.folder} cannot be read or written ({error.strerror}): fix its permissions, "
            "then resume"
        ) from error
    except (OSError, StoppedError) as error:
        number = error.signal_number if isinstance(error, StoppedError) else None
        why = f"{error}, as {signal_name(number)} asked" if number else error
        stopped = StoppedError(f"{why}; {where_it_goes_on(config)}")
        stopped.signal_number = number
        raise stopped from error
    except KeyboardInterrupt:
        line = f"interrupted by {signal_name(signal.SIGINT)}; {where_it_goes_on(config)}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        raise


def where_it_goes_on(config: RunConfig) -> str:
    """The newest checkpoint of every job that has begun, for who has to resume."""
    folders = [config.folder / variant / f"seed{seed}" for seed in config.seeds for variant in config.variants]
    newest = [
        str(found[-1].relative_to(config.folder))
        if (found := checkpoints(folder / "checkpoints"))
        else f"{folder.relative_to(config.folder)} from its beginning"
        for folder in folders
        if folder.is_dir()
    ]
    places = f": {', '.join(newest)}" if newest else ""
    return f"the same command with --resume goes on from the newest checkpoints in {config.folder}{places}"


def prepare(config: RunConfig, resume: bool) -> None:
    """Store the config in the run's folder, or check that what is there is the same run.

    A stored config that is damaged, as the checkpoints know, is written again with a warning.
    """
    stored, text = config.folder / "config.yaml", dump_run(config)
    begun = sorted(config.folder.glob("*/seed*/checkpoints/*/manifest.json"))
    if (stored.exists() or begun) and not resume:
        raise ConfigError(
            f"{config.folder} already holds a run; add --resume to go on with it, or set name= to start another"
        )
    known = _configs_of(begun)
    differs = stored.exists() and stored.read_bytes() != text.encode()
    differences = _differences(stored, config) if differs else []
    if known == {run_digest(config)} or (not known and differences == []):
        if differences != []:
            warnings.warn(f"{stored} is not the config that its checkpoints have; it is written again", stacklevel=2)
    elif known or differs:
        if differences:
            more = len(differences) - MOST_DIFFERENCES
            first = "; ".join(differences[:MOST_DIFFERENCES])
            which = f" ({first}{f'; and {more} more' if more > 0 else ''})"
        else:
            which = f", or checkpoints were written under another one in {config.folder}" if known else ""
        raise ConfigError(
            f"{stored} differs from this config{which}, so --resume would mix two runs; use the stored file as the "
            "config, or set name= to start another run"
        )
    write_text(stored, text)


def _differences(stored: Path, config: RunConfig) -> list[str] | None:
    """See `describe_differences`; `None` for a stored config that cannot be read."""
    try:
        text = dump_run(load_stored_config(stored))  # keys that have been renamed since are no difference
    except ConfigError:
        try:
            text = stored.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    try:
        return describe_differences(text, config, str(stored))
    except ConfigError:
        return None


def check_layout(config: RunConfig, jobs: Sequence[JobId]) -> None:
    """Raise `ConfigError` where a run's folder holds a file in the place of a folder, or the reverse; see `check_kind`.

    Work that met it after hours would end with a promise to resume, which no resumed run could keep.
    """
    for name in (*RUN_FILES, SESSIONS, LOG):
        check_kind(config.folder / name, folder=False)
    for job in jobs:
        folder = config.folder / job.variant / f"seed{job.seed}"
        stages = [folder / stage for stage in EvaluationStage]
        places = [folder.parent, folder, folder / WARM_START, folder / FINAL_MODEL, *stages, folder / "checkpoints"]
        for path in (*places, *checkpoints(folder / "checkpoints")):
            check_kind(path, folder=True)
        for name in (*LOGS, PROGRESS):
            check_kind(folder / name, folder=False)
        for stage in stages:
            for name in RESULT_FILES:
                check_kind(stage / name, folder=False)


def check_files(config: RunConfig, jobs: Sequence[JobId], evaluator: Evaluator) -> None:
    """Raise `RecordError` if a job would refuse what lies in its folder: before any work, with nothing changed."""
    for job in jobs:
        folder = config.folder / job.variant / f"seed{job.seed}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the job that goes on from an older checkpoint says so
                newest_whole(folder)
                for stage in EvaluationStage:
                    evaluator.check_files(folder / stage)
        except RecordError as error:
            error.args = (f"{job}: {error}",)
            raise


def _configs_of(manifests: Sequence[Path]) -> set[str]:
    """Digests of the configs that checkpoints were written under, as far as they can be read."""
    found = set()
    for path in manifests:
        with suppress(RecordError):  # a job that needs it says so
            found.add(read_manifest(path.parent).config)
    return found


@contextmanager
def _stop_on_signal() -> Iterator[_Flag]:
    """A flag that processes share, and that the first of `ENDING_SIGNALS` sets; a second one ends this process at once.

    A `StoppedError` of the block is then of that signal. A SIGHUP that is ignored, as under `nohup`, stays so.
    """
    stop: _Flag = multiprocessing.get_context("spawn").RawValue("b", 0)
    if threading.current_thread() is not threading.main_thread():  # which alone is sent signals
        yield stop
        return

    def ask(number: int, _: object) -> None:
        stop.value = number
        for other in heeded:  # as before: the command line says which signal has ended it
            signal.signal(other, before[other])

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    heeded = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    # Python's tracker of semaphores would die of a SIGHUP to all, with a trace. It inherits that one is ignored.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource_tracker.ensure_running()
    for number in heeded:
        signal.signal(number, ask)
    try:
        yield stop
    except StoppedError as error:
        error.signal_number = stop.value or None
        raise
    except OSError as error:
        if not stop.value:
            raise
        stopped = StoppedError(f"stopped ({error})")
        stopped.signal_number = stop.value
        raise stopped from error
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _run_jobs(
    config: RunConfig, jobs: list[JobId], only_warm_start: bool, display: Display, stop: _Flag, evaluator: Evaluator
) -> None:
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    # By default one thread each: on two cores a second thread gains less than a second job.
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin starve whoever shares the cores
    with ProcessPoolExecutor(config.workers, context, _start_worker, (stop, config.threads)) as pool:
        futures: list[Future[None]] = [pool.submit(_run_job, config, job, only_warm_start, evaluator) for job in jobs]
        processes = list(pool._processes.values())
        try:
            while not all(future.done() for future in futures):
                wait([future for future in futures if not future.done()], EVERY, FIRST_COMPLETED)
                try:
                    display.update()
                except OSError:
                    if not stop.value:  # a closed terminal sends SIGHUP; jobs go on to their checkpoints
                        raise
                for future in futures:
                    if future.done() and not isinstance(future.exception(), StoppedError | None):
                        future.result()
        except BaseException as error:
            end = describe_first_end(processes) if isinstance(error, BrokenProcessPool) else ""
            for process in processes:
                process.kill()  # a checkpoint is whole whenever that comes
            pool.shutdown(wait=False, cancel_futures=True)
            if end:
                raise StoppedError(f"a worker process {end}") from error
            raise
        for future in futures:
            future.result()


def _start_worker(stop: _Flag, threads: int) -> None:
    global _stop
    _stop = stop
    threading.Thread(target=_die_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its workers
    for number in ENDING_SIGNALS:  # likewise; programs that a worker starts do not inherit these
        signal.signal(number, lambda *_: None)
    torch.set_num_threads(threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading and saving: ours is the one that counts


def _die_with_parent() -> None:
    """A worker whose parent was killed would go on writing beside the resumed run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_job(config: RunConfig, job_id: JobId, only_warm_start: bool, evaluator: Evaluator) -> None:
    try:
        _play_job(config, job_id, only_warm_start, evaluator)
    except SelfcestError as error:
        error.args = (f"{job_id}: {error}",)
        raise
    except Exception as error:
        error.add_note(f"in {job_id}")
        raise


def _stopping() -> bool:
    return _stop is not None and _stop.value != 0


def _ranks(config: RunConfig) -> RayRanks | None:
    """Where a job's weights are trained, if not in its own process."""
    if config.cluster is None or config.cluster.learner_ranks == 1:
        return None
    return RayRanks(config.cluster, config.threads)


def _play_job(config: RunConfig, job_id: JobId, only_warm_start: bool, evaluator: Evaluator) -> None:
    if _stopping():
        raise StoppedError("stopped before it began")

    progress = ProgressFile(config.folder / str(job_id))

    def report(stage: str, share: float, note: str) -> None:
        progress.report(stage, share, note, job.state.compute_tokens)

    ranks = _ranks(config)
    job = Job(config, job_id, report, _stopping, ranks)

    def evaluate(stage: EvaluationStage) -> None:
        report("evaluate", 0.0, "")

        def on_played(share: float, line: str) -> None:
            report("evaluate", share, line)
            if _stopping():  # what has been played is stored
                raise StoppedError("stopped in an evaluation")

        # A study judges by itself.
        evaluator.evaluate(config, job_id.variant, job_id.seed, stage, job.player.without_reward(), on_played)

    with ranks or nullcontext(), closing(job):
        job.run(partial(evaluate, EvaluationStage.BEFORE), only_warm_start)
        if not (only_warm_start and job.variant.rl.steps):
            evaluate(EvaluationStage.AFTER)
    report(DONE, 1.0, "")


def default_config() -> Path:
    """The config of a plain `selfcest train`."""
    return find_shipped_config("quick.yaml")
