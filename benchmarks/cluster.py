"""Measure the cost of rollout workers on Ray on this machine: per record, push, call and actor. It prints a table.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/cluster.py [--workers 2] [--megabytes 512]

The environment needs the extras `bench` and `cluster`. The records come from the shipped policy `deciding` on the sums
of its own config. The large push has `--megabytes` of random weights, in 16 layers. A time is the least of `--repeats`,
by the wall clock; CPU seconds are named so. Nothing crosses a network.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agents"), str(ROOT / "training")]
os.environ["PYTHONPATH"] = ":".join(sys.path[:3])  # for the workers

from selfcest_agents.language import language_of  # noqa: E402
from selfcest_agents.lora import merged_weights  # noqa: E402
from selfcest_agents.rollout import RolloutRequest  # noqa: E402
from selfcest_env.plugin import PlugIn  # noqa: E402
from selfcest_training.cluster.config import ClusterConfig  # noqa: E402
from selfcest_training.cluster.connection import connected, import_ray  # noqa: E402
from selfcest_training.cluster.rollouts import RolloutPool, RolloutWorkers, WorkerSpec  # noqa: E402
from selfcest_training.cluster.snapshot import WeightSnapshot  # noqa: E402
from selfcest_training.config_file import load_stored_config  # noqa: E402
from selfcest_training.families import make_families  # noqa: E402
from selfcest_training.shipped import find_model_folder  # noqa: E402

VARIANT = "deciding"
FAMILY = "priced"


class Reader:
    """An actor that gets weights as a worker does, and copies them as an engine does."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def get(self, reference: list[Any], copy: bool) -> float:
        """Get the weights, and copy them if asked. Return the seconds of the last of these steps."""
        start = time.perf_counter()
        tensors = [tensor for _, tensor in import_ray().get(reference[0]).tensors()]
        if copy:
            self.weights = self.weights or [torch.empty_like(tensor) for tensor in tensors]
            start = time.perf_counter()
            for weight, tensor in zip(self.weights, tensors, strict=True):
                weight.copy_(tensor)
        return time.perf_counter() - start

    def nothing(self) -> None:
        pass


def least(times: int, work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several runs."""

    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--episodes", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    ray = import_ray()
    repeats = args.repeats
    folder = find_model_folder(VARIANT)
    config = load_stored_config(folder.parents[2] / "config.yaml")
    config = replace(config, sampler=PlugIn("transformers", {"dtype": "float32"}))
    language = language_of(config.model)
    limits = config.limits_of(VARIANT)
    model = language.load(0, folder)
    rng = np.random.default_rng(0)
    source = make_families({FAMILY: config.tasks[FAMILY]}, "train")[FAMILY]
    tasks = [source.draw(rng) for _ in range(args.episodes // 8)]
    requests = [RolloutRequest(f"e{i}", tasks[i // 8], i) for i in range(args.episodes)]

    rows: list[tuple[str, str]] = []
    cluster = ClusterConfig(rollout_workers=args.workers, rollout_resources={"CPU": 0.5})
    start = time.perf_counter()
    with connected(cluster) as cluster:
        rows.append(("start Ray on this machine", f"{time.perf_counter() - start:.1f} s"))
        start = time.perf_counter()
        spec = WorkerSpec(config.model, config.sampler, config.reward, limits, threads=1)
        workers = RolloutWorkers(cluster, spec, None)
        rows.append((f"start {args.workers} workers, all at once", f"{time.perf_counter() - start:.1f} s"))
        processes = [psutil.Process(facts.pid) for facts in workers.facts]
        used = [sum(process.cpu_times()[:2]) for process in processes]
        memory = [process.memory_info().rss for process in processes]
        rows.append(("per worker: CPU, memory", f"{max(used):.1f} CPU-s, {max(memory) / 1e6:.0f} MB"))

        workers.push(merged_weights(model), 0)
        pool = RolloutPool(language, limits, workers)
        records = pool.play(requests, 1.0)
        dumped = [pickle.dumps(record, protocol=5) for record in records]
        rows.append(("a record", f"{np.mean([len(each) for each in dumped]):.0f} bytes"))
        seconds = least(repeats, lambda: [pickle.dumps(record, protocol=5) for record in records]) / len(records)
        rows.append(("a record: dump", f"{1e3 * seconds:.2f} ms"))
        seconds = least(repeats, lambda: [pickle.loads(each) for each in dumped]) / len(records)
        rows.append(("a record: load", f"{1e3 * seconds:.2f} ms"))
        size = len(pickle.dumps(requests, protocol=5)) / len(requests)
        rows.append(("a request, its task shared by 8", f"{size:.0f} bytes"))
        seconds = least(repeats, lambda: ray.get(ray.put(records)))
        rows.append((f"{len(records)} records through the object store", f"{1e3 * seconds:.0f} ms"))

        reader = ray.remote(Reader).options(num_cpus=0).remote()
        ray.get(reader.nothing.remote())
        seconds = least(100, lambda: ray.get(reader.nothing.remote()))
        rows.append(("a call that does nothing", f"{1e3 * seconds:.2f} ms"))
        small = WeightSnapshot.of(merged_weights(model), 0)
        seconds = least(repeats, lambda: workers.push(merged_weights(model), 1))
        rows.append((f"push {small.num_bytes / 1e6:.1f} MB: put", f"{1e3 * seconds:.1f} ms"))
        pool.play(requests[: args.workers], 1.0)  # all have these weights now
        old = least(repeats, lambda: pool.play(requests[: args.workers], 0.0))

        def new() -> None:
            workers.hand_over(ray.put(small))
            pool.play(requests[: args.workers], 0.0)

        loaded = least(repeats, new) - old
        rows.append(("push it to all workers: put, get, load", f"{1e3 * loaded:.0f} ms"))
        layers = [(str(i), torch.rand(args.megabytes * 2**20 // 16 // 4)) for i in range(16)]
        put = least(repeats, lambda: ray.put(WeightSnapshot.of(layers, 0)))
        reference = ray.put(WeightSnapshot.of(layers, 0))
        got = min(ray.get(reader.get.remote([reference], False)) for _ in range(repeats))
        copied = min(ray.get(reader.get.remote([reference], True)) for _ in range(repeats + 1))
        megabytes = f"{args.megabytes * 2**20 / 1e6:.0f} MB of float32"
        rows.append((f"{megabytes}: put", f"{put:.2f} s"))
        rows.append((f"{megabytes}: get, as views", f"{1e3 * got:.1f} ms"))
        rows.append((f"{megabytes}: copy into a model", f"{copied:.2f} s"))
        pool.close()
    print(f"| rollout workers on Ray {ray.__version__}, {psutil.cpu_count()} cores | measured |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
