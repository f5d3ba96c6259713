"""The connection to a Ray cluster, or to one that is started on this machine. Only this module imports Ray."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from selfcest_env.errors import ConfigError, InfrastructureError, install_hint
from selfcest_env.local_modules import local_modules
from selfcest_training.cluster.config import ClusterConfig, Resources, check_resources

# Seconds within which a host must accept a connection.
_CONNECT_SECONDS = 5.0
# Seconds within which Ray must answer. Ray itself would retry silently for much longer.
_JOIN_SECONDS = 60.0


def import_ray() -> Any:
    """Import Ray and return the module.

    Raises:
        ConfigError: Ray is not installed.
    """
    # Ray requires a token from processes that join a cluster whose machine has one, but a joining process uses its
    # token only in this mode, which Ray reads on import.
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    has_token = has_token or (Path.home() / ".ray" / "auth_token").is_file()
    if has_token and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Where several workers fail, the first error is raised; Ray would also print the others.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError(
            f"the config has a cluster block, and Ray cannot be imported ({error}); set cluster=null, or run: "
            f"{install_hint('cluster')}"
        ) from error
    return ray


@contextmanager
def connected(config: ClusterConfig) -> Iterator[ClusterConfig]:
    """Join the cluster for the length of the block; a cluster that was started on this machine ends with the block.

    Yields:
        The config with the address that other processes join.

    Raises:
        ConfigError: Ray is not installed, the address does not answer, or the cluster lacks the resources.
    """
    ray = import_ray()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    address = join(config)
    if threading.current_thread() is threading.main_thread():
        # Ray installs handlers that would end the process without a checkpoint.
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        check_resources(config, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        yield replace(config, address=address)
    finally:
        ray.shutdown()


def join(config: ClusterConfig) -> str:
    """Join the cluster unless this process has, and return its address. Raises `ConfigError` as `connected`."""
    ray = import_ray()
    if not ray.is_initialized():
        options = {**_LOGGING, "job_config": _job_config()}
        if config.address:
            _init_within(_JOIN_SECONDS, config.address, options)
        else:
            # In this thread and not in a helper thread: a local cluster ends with the thread that starts it.
            ray.init("local", include_dashboard=False, **options)
    return str(ray.get_runtime_context().gcs_address)


_LOGGING = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}


def _job_config() -> Any:
    """Return a `JobConfig` that keeps the driver's working directory off the `sys.path` of workers.

    Ray puts that directory before the standard library unless a directory is uploaded. Where plug-ins of a folder are
    used, the project's own import finds them (`selfcest_env.local_modules`).
    """
    from ray.job_config import JobConfig

    if local_modules() is None:
        return JobConfig()

    class JobConfigWithoutPath(JobConfig):  # type: ignore[misc, unused-ignore]
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return JobConfigWithoutPath()


def _init_within(seconds: float, address: str, options: Mapping[str, Any] = MappingProxyType(_LOGGING)) -> None:
    """Join a running cluster, and raise `ConfigError` if it does not answer in time."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cluster.address is {address}, which does not accept connections ({error}); start its head with "
            "`ray start --head`, or set cluster.address=null to start Ray on this machine"
        ) from error
    failures: list[BaseException] = []

    def init() -> None:
        try:
            import_ray().init(address, **options)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=init, name="ray-init", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive() or failures:
        reason = failures[0].__cause__ or failures[0] if failures else f"no answer in {seconds:g} s"
        raise ConfigError(
            f"cluster.address is {address}, which cannot be joined ({to_one_line(reason, 500)}); check "
            "that it is the head of a cluster with this version of Ray and that this machine has its token "
            "(`ray get-auth-token`)"
        ) from (failures[0] if failures else None)


def actor_options(resources: Resources) -> dict[str, Any]:
    """Return the arguments of Ray's `options`, which names three kinds of resources and takes others as a mapping."""
    argument_of = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {"num_cpus": 0}
    options["resources"] = {name: value for name, value in resources.items() if name not in argument_of}
    for name, argument in argument_of.items():
        if name in resources:
            options[argument] = resources[name]
    return options


def death_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that Ray raises when a worker's process or node has died, or when its result is lost."""
    exceptions = import_ray().exceptions
    return (
        exceptions.RayActorError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
    )


def to_one_line(error: object, max_characters: int = 300) -> str:
    """Return the beginning of an error's text, in one line."""
    return " ".join(str(error).split())[:max_characters]


def start_actors(actors: Sequence[Any], kind: str, resources: Resources, seconds: float) -> list[Any]:
    """Call `start` of actors and return the results, in the order of the actors.

    Args:
        actors: actors that were just created.
        kind: a noun for the messages, such as `rollout worker`.
        resources: resources of each actor, for the messages.
        seconds: `ClusterConfig.start_seconds`.

    Raises:
        InfrastructureError: an actor died, or not all actors started in time.
    """
    ray = import_ray()
    starting = [actor.start.remote() for actor in actors]
    ready, missing = ray.wait(starting, num_returns=len(starting), timeout=seconds)
    try:
        result_by_reference = {reference: get_result(reference) for reference in ready}
    except death_errors() as error:
        raise InfrastructureError(f"a {kind} died while it started: {to_one_line(error)}") from error
    if missing:
        raise InfrastructureError(
            f"{len(missing)} of {len(starting)} {kind}s, which need {dict(resources)} each, did not start in "
            f"cluster.start_seconds = {seconds:g}; look at `ray status`"
        )
    return [result_by_reference[reference] for reference in starting]


def get_result(reference: Any) -> Any:
    """Return the result of a call, or raise the call's exception with Ray's trace as the cause."""
    ray = import_ray()
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    except death_errors():
        raise
    except ray.exceptions.RayError as error:
        raise InfrastructureError(f"Ray failed with {to_one_line(error, 500)}") from error
