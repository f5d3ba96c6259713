"""Runs the jobs of a run, one for every variant and seed, in worker processes, and then writes the table."""

from __future__ import annotations

import itertools
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
from multiprocessing.process import BaseProcess
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
from selfcest_training.printing import print_text
from selfcest_training.run.checkpoint import WARM_START, find_newest_checkpoint, list_checkpoints, read_manifest
from selfcest_training.run.display import UPDATE_SECONDS, Display, print_report
from selfcest_training.run.evaluator import EvaluationStage, Evaluator
from selfcest_training.run.job import FINAL_MODEL, LOGS, Job, JobId
from selfcest_training.run.progress import DONE, PROGRESS, ProgressFile
from selfcest_training.run.shared_warmstart import find_leader, has_begun
from selfcest_training.session import SESSIONS, record_session

# Largest number of differing keys that an error names.
MAX_DIFFERENCES = 4
RUN_FILES = ("config.yaml", "table.md", "results.csv")
# Files in the folder of an evaluation.
RESULT_FILES = ("results.jsonl", "played.jsonl")


class _StopFlag(Protocol):
    """A number that processes share: 0, or the number of the signal that asked the run to stop."""

    value: int


# The flag of a worker process.
_stop: _StopFlag | None = None


def run(
    config: RunConfig,
    *,
    resume: bool,
    only_warm_start: bool = False,
    console: Console | None = None,
    evaluator: Evaluator | None = None,
) -> None:
    """Train and evaluate every variant with every seed, and write the table.

    Args:
        config: the run's config.
        resume: whether to resume a run in the folder.
        only_warm_start: end before RL, and evaluate the policies of the warm start.
        console: console for the progress.
        evaluator: evaluates the policies; `None` only trains.

    Raises:
        ConfigError: before any work: the folder holds another run, is in use or cannot be written, a plug-in cannot be
            loaded, the weights do not fit the GPU, or a demonstration does not fit the limits.
    """
    # Mistakes are found before any work: in the memory, in the parts of the jobs, and in the evaluation.
    check_device(config)
    for variant in config.variants:
        job = Job(config, JobId(variant, config.seeds[0]), lambda *_: None)
        if not resume:
            job.check_demonstrations()
    evaluator = evaluator or Evaluator()
    evaluator.check(config)
    with _connect_cluster(config) as connected_config, lock_folder(config.folder), log_faults(config.folder):
        _run(connected_config, resume, only_warm_start, console or Console(), evaluator)


@contextmanager
def _connect_cluster(config: RunConfig) -> Iterator[RunConfig]:
    """Connect to the cluster of a config, if it has one, and yield the config with the cluster's address."""
    if config.cluster is None:
        yield config
        return
    with connected(config.cluster) as cluster:
        yield replace(config, cluster=cluster)


def _run(config: RunConfig, resume: bool, only_warm_start: bool, console: Console, evaluator: Evaluator) -> None:
    jobs = [JobId(variant, seed) for seed, variant in itertools.product(config.seeds, _longest_first(config))]
    try:
        check_layout(config, jobs)
        prepare_folder(config, resume)
        check_files(config, jobs, evaluator)
        for job in jobs:
            # The file is from an earlier start.
            (config.job_folder(job.variant, job.seed) / PROGRESS).unlink(missing_ok=True)
        with _stop_on_signal() as stop:
            with record_session(config.folder, config.cluster), Display(config, console) as display:
                _run_jobs(config, jobs, only_warm_start, display, stop, evaluator)
            # All episodes are played, so a signal to stop does not interrupt the report.
            print_report(config, console, evaluator)
    except PermissionError as error:
        # A retry would fail in the same way, so this is no infrastructure failure.
        raise ConfigError(
            f"{error.filename or config.folder} cannot be read or written ({error.strerror}): fix its permissions, "
            "then resume"
        ) from error
    except (OSError, StoppedError) as error:
        number = error.signal_number if isinstance(error, StoppedError) else None
        cause = f"{error}, as {signal_name(number)} asked" if number else error
        stopped = StoppedError(f"{cause}; {describe_resume(config)}")
        stopped.signal_number = number
        raise stopped from error
    except KeyboardInterrupt:
        print_text(console, f"interrupted by {signal_name(signal.SIGINT)}; {describe_resume(config)}")
        raise


def describe_resume(config: RunConfig) -> str:
    """Describe how to resume the run, with the newest checkpoint of every job that has begun."""
    starts = []
    for seed, variant in itertools.product(config.seeds, config.variants):
        folder = config.job_folder(variant, seed)
        if not folder.is_dir():
            continue
        checkpoints = list_checkpoints(folder / "checkpoints")
        if checkpoints:
            starts.append(str(checkpoints[-1].relative_to(config.folder)))
        else:
            starts.append(f"{folder.relative_to(config.folder)} from its beginning")
    details = f": {', '.join(starts)}" if starts else ""
    return f"the same command with --resume resumes from the newest checkpoints in {config.folder}{details}"


def prepare_folder(config: RunConfig, resume: bool) -> None:
    """Store the config in the run's folder, or check that the folder holds the same run.

    A damaged stored config is written again, with a warning, if all checkpoints have this config.

    Raises:
        ConfigError: the folder holds another run, or `resume` is false and it holds a run.
    """
    stored = config.folder / "config.yaml"
    text = dump_run(config)
    manifests = sorted(config.folder.glob("*/seed*/checkpoints/*/manifest.json"))
    if (stored.exists() or manifests) and not resume:
        raise ConfigError(
            f"{config.folder} already holds a run; add --resume to resume it, or set name= to start another"
        )
    checkpoint_digests = _read_config_digests(manifests)
    differs = stored.exists() and stored.read_bytes() != text.encode()
    # `None`: the stored config cannot be read.
    differences = _describe_stored_differences(stored, config) if differs else []
    # Checkpoints decide whether it is the same run; without checkpoints the stored config does.
    is_same_run = checkpoint_digests == {run_digest(config)} if checkpoint_digests else differences == []
    if not is_same_run:
        details = ""
        if differences:
            num_more = len(differences) - MAX_DIFFERENCES
            more = f"; and {num_more} more" if num_more > 0 else ""
            details = f" ({'; '.join(differences[:MAX_DIFFERENCES])}{more})"
        elif checkpoint_digests:
            details = f", or checkpoints in {config.folder} were written with another config"
        raise ConfigError(
            f"{stored} differs from this config{details}, so --resume would mix two runs; use the stored file as the "
            "config, or set name= to start another run"
        )
    if differences != []:
        warnings.warn(f"{stored} is not the config of its checkpoints; it is written again", stacklevel=2)
    write_text(stored, text)


def _describe_stored_differences(stored: Path, config: RunConfig) -> list[str] | None:
    """See `describe_differences`; `None` for a stored config that cannot be read."""
    try:
        # Parsed, so that keys that were renamed since are no differences.
        text = dump_run(load_stored_config(stored))
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
    """Raise `ConfigError` if a run's folder holds a file in the place of a folder, or the reverse; see `check_kind`.

    Without this check the run would fail after hours, and could not resume.
    """
    for name in (*RUN_FILES, SESSIONS, LOG):
        check_kind(config.folder / name, folder=False)
    for job in jobs:
        folder = config.job_folder(job.variant, job.seed)
        stages = [folder / stage for stage in EvaluationStage]
        checkpoints = folder / "checkpoints"
        folders = [folder.parent, folder, folder / WARM_START, folder / FINAL_MODEL, *stages, checkpoints]
        for path in (*folders, *list_checkpoints(checkpoints)):
            check_kind(path, folder=True)
        for name in (*LOGS, PROGRESS):
            check_kind(folder / name, folder=False)
        for stage in stages:
            for name in RESULT_FILES:
                check_kind(stage / name, folder=False)


def check_files(config: RunConfig, jobs: Sequence[JobId], evaluator: Evaluator) -> None:
    """Raise `RecordError` if a job cannot resume from the files in its folder. Nothing is changed."""
    for job in jobs:
        folder = config.job_folder(job.variant, job.seed)
        try:
            with warnings.catch_warnings():
                # The job itself warns if it resumes from an older checkpoint.
                warnings.simplefilter("ignore")
                find_newest_checkpoint(folder)
                for stage in EvaluationStage:
                    evaluator.check_files(folder / stage)
        except RecordError as error:
            error.args = (f"{job}: {error}",)
            raise


def _read_config_digests(manifests: Sequence[Path]) -> set[str]:
    """Read the config digests of checkpoints. Damaged manifests are skipped."""
    config_digests = set()
    for path in manifests:
        # A job that needs this checkpoint raises the error.
        with suppress(RecordError):
            config_digests.add(read_manifest(path.parent).config)
    return config_digests


@contextmanager
def _stop_on_signal() -> Iterator[_StopFlag]:
    """Yield a flag that the first of `ENDING_SIGNALS` sets. A second signal ends this process at once.

    A `StoppedError` of the block gets the number of the signal. Ignored signals stay ignored, as SIGHUP under `nohup`.
    """
    stop: _StopFlag = multiprocessing.get_context("spawn").RawValue("b", 0)
    # Only the main thread receives signals.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def set_flag(number: int, _: object) -> None:
        stop.value = number
        # The earlier handlers end the process at the next signal, and report it.
        for handled in handled_signals:
            signal.signal(handled, handlers_before[handled])

    handlers_before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    handled_signals = [n for n, handler in handlers_before.items() if handler not in (signal.SIG_IGN, None)]
    # A SIGHUP to all processes would end Python's resource tracker with a trace, unless it starts while it is ignored.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    resource_tracker.ensure_running()
    for number in handled_signals:
        signal.signal(number, set_flag)
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
        for number in handled_signals:
            signal.signal(number, handlers_before[number])


def _longest_first(config: RunConfig) -> list[str]:
    """Return the variants, those with RL and then those with more demonstrations first.

    If the longest job came last, it would run while the other workers have nothing to do.
    """

    def measure_length(name: str) -> tuple[bool, int]:
        variant = config.variants[name]
        return variant.rl.steps > 0, sum(phase.tokens for phase in variant.warmstart.phases)

    return sorted(config.variants, key=measure_length, reverse=True)


def _run_jobs(
    config: RunConfig,
    jobs: list[JobId],
    only_warm_start: bool,
    display: Display,
    stop: _StopFlag,
    evaluator: Evaluator,
) -> None:
    """Run jobs in worker processes until all have ended, or one has failed.

    A job that shares the first phases of its warm start begins when they are trained.
    """
    leaders: dict[JobId, JobId] = {}
    for job in jobs:
        leader = find_leader(config, job.variant, job.seed)
        if leader is not None:
            leaders[job] = JobId(leader, job.seed)
    context = multiprocessing.get_context("spawn")
    # One thread per job by default: on two cores a second thread gains less than a second job.
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    # Threads that spin while they wait would slow down other processes on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # glibc returns freed memory to the system by default, and requests its pages again in the next micro-batch. A
    # process that holds much gives it back in `release_memory`.
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(512 << 20))
    # The largest value that glibc accepts.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(32 << 20))
    with ProcessPoolExecutor(config.workers, context, _start_worker, (stop, config.threads)) as pool:
        futures: dict[JobId, Future[None]] = {}
        processes: dict[int, BaseProcess] = {}

        def is_ready(job: JobId) -> bool:
            if job not in leaders or has_begun(config, job.variant, job.seed):
                return True
            # A leader that has ended without a checkpoint for this job has failed or was stopped.
            return leaders[job] in futures and futures[leaders[job]].done()

        try:
            while len(futures) < len(jobs) or not all(future.done() for future in futures.values()):
                for job in jobs:
                    if job not in futures and is_ready(job):
                        futures[job] = pool.submit(_run_job, config, job, only_warm_start, evaluator)
                # A process starts with the first job for it.
                processes.update(pool._processes)
                running = [future for future in futures.values() if not future.done()]
                wait(running, UPDATE_SECONDS, FIRST_COMPLETED)
                try:
                    display.update()
                except OSError:
                    # A closed terminal sends SIGHUP, which sets the flag. Jobs then continue to their checkpoints.
                    if not stop.value:
                        raise
                # A failed job ends the run at once. After a stopped one, the others still write their checkpoints.
                for future in futures.values():
                    if future.done() and not isinstance(future.exception(), StoppedError | None):
                        future.result()
        except BaseException as error:
            exit_cause = describe_first_end(list(processes.values())) if isinstance(error, BrokenProcessPool) else ""
            # Checkpoints are written atomically, so a process may be killed at any time.
            for process in processes.values():
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            if exit_cause:
                raise StoppedError(f"a worker process {exit_cause}") from error
            raise
        for future in futures.values():
            future.result()


def _start_worker(stop: _StopFlag, threads: int) -> None:
    global _stop
    _stop = stop
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # The parent process handles signals, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A function that does nothing, because programs that a worker starts would inherit SIG_IGN.
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)
    torch.set_num_threads(threads)
    # The progress bars of loading and saving models would disturb the display.
    disable_progress_bar()  # type: ignore[no-untyped-call]


def _exit_with_parent() -> None:
    """End a worker whose parent was killed, as it would write into the folder of the resumed run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_job(config: RunConfig, job_id: JobId, only_warm_start: bool, evaluator: Evaluator) -> None:
    try:
        _train_and_evaluate(config, job_id, only_warm_start, evaluator)
    except SelfcestError as error:
        error.args = (f"{job_id}: {error}",)
        raise
    except Exception as error:
        error.add_note(f"in {job_id}")
        raise


def _is_stopping() -> bool:
    return _stop is not None and _stop.value != 0


def _make_ranks(config: RunConfig) -> RayRanks | None:
    """Make the learner's ranks, unless the learner runs in the job's own process."""
    if config.cluster is None or config.cluster.learner_ranks == 1:
        return None
    return RayRanks(config.cluster, config.threads)


def _train_and_evaluate(config: RunConfig, job_id: JobId, only_warm_start: bool, evaluator: Evaluator) -> None:
    if _is_stopping():
        raise StoppedError("stopped before it began")

    progress = ProgressFile(config.job_folder(job_id.variant, job_id.seed))

    def report(stage: str, share: float, note: str) -> None:
        progress.report(stage, share, note, job.state.compute_tokens)

    ranks = _make_ranks(config)
    job = Job(config, job_id, report, _is_stopping, ranks)

    def evaluate(stage: EvaluationStage) -> None:
        report("evaluate", 0.0, "")

        def on_played(share: float, line: str) -> None:
            report("evaluate", share, line)
            # All episodes so far are stored.
            if _is_stopping():
                raise StoppedError("stopped in an evaluation")

        # The evaluator scores the episodes itself.
        evaluator.evaluate(config, job_id.variant, job_id.seed, stage, job.player.without_reward(), on_played)

    with ranks or nullcontext(), closing(job):
        job.run(partial(evaluate, EvaluationStage.BEFORE), only_warm_start)
        if not (only_warm_start and job.variant.rl.steps):
            evaluate(EvaluationStage.AFTER)
    report(DONE, 1.0, "")


def default_config() -> Path:
    """Return the path of the config that `selfcest train` uses without `--config`."""
    return find_shipped_config("quick.yaml")
