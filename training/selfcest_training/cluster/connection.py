"""Joining a Ray cluster, or starting one on this machine. Ray is imported here, and only when it is asked for."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from selfcest_env.errors import ConfigError, InfrastructureError, install_hint
from selfcest_env.local_modules import local_modules
from selfcest_training.cluster.config import ClusterConfig, Resources, check_resources

_REACHED = 5.0  # seconds within which a host must take a connection
_JOINED = 60.0  # seconds within which Ray must answer; by itself it tries for much longer, and without a word


def import_ray() -> Any:
    """The module. Raises `ConfigError` that says what to install."""
    # A cluster that is started has a lock where its machine has a token, and who joins has none unless told to.
    token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    token = token or (Path.home() / ".ray" / "auth_token").is_file()
    if token and "ray" not in sys.modules:  # which reads it when it is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first of several workers' is raised, and enough
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
    """This process joins the cluster for as long as the block lasts; one of this machine lasts no longer.

    Yields:
        The config with the address that other processes join.

    Raises:
        ConfigError: Ray is not installed, nobody answers at the address, or the cluster lacks what is asked for.
    """
    ray = import_ray()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    address = join(config)
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():  # Ray sets its own, which would end the process without a checkpoint
            signal.signal(number, handler)
    try:
        check_resources(config, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        yield replace(config, address=address)
    finally:
        ray.shutdown()


def join(config: ClusterConfig) -> str:
    """Join the cluster unless this process has; its address. Raises `ConfigError` as `connected`."""
    ray = import_ray()
    if not ray.is_initialized():
        # A local cluster ends with the thread that starts it, so that must be one that lasts.
        options = {**_QUIET, "job_config": _job_config()}
        if config.address:
            _within(_JOINED, config.address, options)
        else:
            ray.init("local", include_dashboard=False, **options)
    return str(ray.get_runtime_context().gcs_address)


_QUIET = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}


def _job_config() -> Any:
    """Ray's `JobConfig`; where a folder is searched for plug-ins, workers do not get it on their `sys.path`.

    Ray puts the driver's working directory there, before the standard library, unless it has been told of a directory
    to upload.
    """
    from ray.job_config import JobConfig

    if local_modules() is None:
        return JobConfig()

    class JobConfigWithoutPath(JobConfig):  # type: ignore[misc, unused-ignore]
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return JobConfigWithoutPath()


def _within(seconds: float, address: str, options: Mapping[str, Any] = MappingProxyType(_QUIET)) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cluster.address is {address}, and nobody answers there ({error}); start its head with `ray start "
            "--head`, or set cluster.address=null for Ray on this machine alone"
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
        why = failures[0].__cause__ or failures[0] if failures else f"no answer in {seconds:g} s"
        raise ConfigError(
            f"cluster.address is {address}, and its Ray cannot be joined ({' '.join(str(why).split())[:500]}); is it "
            "the head of a Ray cluster of this version, and has this machine its token (`ray get-auth-token`)?"
        ) from (failures[0] if failures else None)


def actor_options(resources: Resources) -> dict[str, Any]:
    """As Ray's `options` takes them."""
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    others = {name: value for name, value in resources.items() if name not in own}
    return {"num_cpus": 0, "resources": others} | {own[name]: resources[name] for name in own if name in resources}


def death_errors() -> tuple[type[BaseException], ...]:
    """What Ray raises when the process or the node that worked for a call is gone, and when only its answer is."""
    of = import_ray().exceptions
    return (of.RayActorError, of.WorkerCrashedError, of.NodeDiedError, of.ObjectLostError)


def started_of(reference: Any, what: str) -> Any:
    """What an actor's first call returned. Raises `InfrastructureError` if it died instead."""
    try:
        return result_of(reference)
    except death_errors() as error:
        said = " ".join(str(error).split())[:300]
        raise InfrastructureError(f"a {what} died while it started: {said}") from error


def result_of(reference: Any) -> Any:
    """What a call returned. Raises what it raised, with Ray's trace of it as the cause."""
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
        raise InfrastructureError(f"Ray failed with {' '.join(str(error).split())[:500]}") from error
