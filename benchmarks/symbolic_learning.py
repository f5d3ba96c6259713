"""Learning on `chain`: five recipes of this project and MaskablePPO, success against decisions and CPU time.

    python benchmarks/symbolic_learning.py                  # about 20 minutes on 2 cores
    python benchmarks/symbolic_learning.py --window none    # everybody may answer: early clones only cost
    python benchmarks/symbolic_learning.py --modulus 5 --episodes 1024 --entropy 0.03 --seconds 60   # harder sums
    python benchmarks/symbolic_learning.py --tune           # the search that chose the learning rates

Every run is stored when it ends and not run again; delete its file to repeat it. The table (Markdown, CSV) and the plot
are written from what is stored. Decisions are turns of agents with a choice, in replays as in episodes. CPU seconds are
of a fresh process with one thread, evaluations excluded. Success is that of the greedy policy on 1,000 problems drawn
from another seed; of small games most are trained on too. All learners have networks of equal widths and play as many
decisions per update (`--episodes`), COMA a quarter of that: it takes one step of the policy per update where the others
take 16.

A recipe is a cell of the grid of credit and loss, with settings (`learning`): `ppo` is `value` with the clipped loss,
`coma` takes one pass, the rest are the credits of that name with the clipped loss.
"""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch is imported

import numpy as np
import torch
import typer
from torch import Tensor

from selfcest_env.symbolic import SymbolicRules, make_rules
from selfcest_env.symbolic.optimum import optimal_return
from selfcest_training.marl.credit import Broadcast, Coma, Credit, Difference, Shapley, Value
from selfcest_training.marl.learner import Learner
from selfcest_training.marl.loss import Clipped, Loss, OnePass
from selfcest_training.marl.networks import draw
from selfcest_training.marl.progress import Curve, Examiner, Point, evaluate
from selfcest_training.marl.train import train

GOAL, ENOUGH = 0.9, 0.95
HIDDEN = (128, 128)
ITEMS = [2, 8]
RATES = (1e-3, 3e-3)
TUNING_SEED = 100  # used for nothing else

# Chosen by --tune: the rate that reaches GOAL in less CPU time, or comes closer to it.
LEARNERS: dict[str, float] = {
    "maskable_ppo": 3e-3,
    "ppo": 1e-3,
    "coma": 3e-3,
    "broadcast": 3e-3,
    "difference": 3e-3,
    "shapley": 1e-3,
}


@dataclass(frozen=True)
class Job:
    """One run, and where it is stored."""

    learner: str
    seed: int
    rate: float
    window: int | None
    modulus: int
    episodes: int
    entropy: float
    seconds: float
    until: float
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "runs" / f"{self.learner}-{self.rate:g}-seed{self.seed}.json"

    def load(self) -> Curve:
        points = json.loads(self.file.read_text())["points"]
        return Curve(tuple(Point(**point) for point in points))


def rules_of(window: int | None, modulus: int) -> SymbolicRules:
    return make_rules("chain", {"items": ITEMS, "modulus": modulus, "window": window})


def play(job: Job) -> str:
    """Run a job and store its curve."""
    torch.set_num_threads(1)
    rules, budget = (
        rules_of(job.window, job.modulus),
        {"seconds": job.seconds, "until": job.until, "every": job.seconds / 30},
    )
    if job.learner == "maskable_ppo":
        curve = maskable_ppo(rules, job, Examiner(rules, **budget))
    else:
        credit, loss, learner = learning(job)
        curve = train(credit, rules, job.seed, loss=loss, learner=learner, **budget)
    job.file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = job.file.with_suffix(".part")
    unfinished.write_text(json.dumps({"points": [point._asdict() for point in curve.points]}) + "\n")
    unfinished.replace(job.file)
    last = curve.points[-1]
    return f"{job.file.stem}: success {last.success:.3f} after {last.decisions:,} decisions, {last.seconds:.1f} s"


def learning(job: Job) -> tuple[Credit, Loss, Learner]:
    """A recipe."""
    learner = Learner(learning_rate=job.rate, hidden=HIDDEN, episodes=job.episodes, entropy=job.entropy)
    match job.learner:
        case "ppo":  # its value takes about four steps per pass, as the policy does
            value = Value(critic_learning_rate=job.rate, critic_batch=320 * job.episodes // 256)
            return value, Clipped(), replace(learner, group_size=1, per="decision")
        case "coma":
            own = {"episodes": job.episodes // 4, "group_size": 1, "max_gradient": 10.0, "floor": (0.1, 0.0)}
            return Coma(critic_learning_rate=job.rate), OnePass(), replace(learner, **own)
        case name:
            credits = {"broadcast": Broadcast, "difference": Difference, "shapley": Shapley}
            return credits[name](), Clipped(), learner


def maskable_ppo(rules: SymbolicRules, job: Job, examiner: Examiner) -> Curve:
    """MaskablePPO of sb3-contrib, one decision per step, set up as the recipe `ppo`."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.callbacks import BaseCallback

    from selfcest_env.adapters.sb3 import SymbolicVecEnv

    games, steps = job.episodes // 4, 20  # decisions per update as of so many episodes

    class Watch(BaseCallback):
        over = False

        def _on_rollout_start(self) -> None:  # before the first update, then after each
            self.over = examiner(self.num_timesteps, self.best)

        def _on_step(self) -> bool:
            return not self.over

        def best(self, observations: Tensor, masks: Tensor) -> Tensor:
            actions = self.model.predict(observations.numpy(), action_masks=masks.numpy(), deterministic=True)[0]
            return torch.from_numpy(actions)

    model = MaskablePPO(
        "MlpPolicy",
        SymbolicVecEnv(rules, games, per="decision"),
        n_steps=steps,
        batch_size=games * steps // 4,
        n_epochs=4,
        gamma=1.0,
        ent_coef=job.entropy,
        max_grad_norm=1.0,
        learning_rate=job.rate,
        policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.ReLU},
        seed=job.seed,
        device="cpu",
    )
    model.learn(1 << 40, callback=Watch())
    return Curve(tuple(examiner.points))


def row(learner: str, curves: Sequence[Curve]) -> dict[str, Any]:
    """What the table says of a learner; medians over seeds, where a run that did not reach the goal counts as last."""
    reached = [curve.reached(GOAL) for curve in curves]
    made = sorted(point.seconds for point in reached if point)
    never = [float("inf")] * (len(curves) - len(made))
    in_decisions = median(sorted(point.decisions for point in reached if point) + never)
    in_seconds = median(made + never)
    return {
        "learner": learner,
        "runs that reached it": f"{len(made)} of {len(curves)}",
        "decisions to it": f"{in_decisions:,.0f}" if in_decisions < float("inf") else "not reached",
        "CPU s to it": f"{in_seconds:.1f}" if in_seconds < float("inf") else "not reached",
        "fastest and slowest run, CPU s": f"{made[0]:.1f} to {(made + never)[-1]:.1f}".replace("inf", "never")
        if made
        else "never",
        "success at the end": f"{median(curve.points[-1].success for curve in curves):.3f}",
    }


def references(rules: SymbolicRules) -> dict[str, float]:
    """Success of uniform legal play and of the best plan."""
    generator = torch.Generator().manual_seed(0)
    uniform = evaluate(lambda _, masks: draw(masks.float(), generator), rules, episodes=10_000)
    return {"random": uniform.success, "optimal": optimal_return(rules).success}


def write(folder: Path, curves: dict[str, list[Curve]], rules: SymbolicRules) -> None:
    """table.md, table.csv and plot.png."""
    rows = [row(learner, found) for learner, found in curves.items()]
    known = references(rules)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        "| " + " | ".join(cells) + " |" for cells in ([*rows[0]], ["---"] * len(rows[0]), *(r.values() for r in rows))
    ]
    goal = f"The goal is {GOAL} success; {', '.join(f'{name} play has {value:.3f}' for name, value in known.items())}."
    (folder / "table.md").write_text("\n".join([*lines, "", goal]) + "\n")
    print((folder / "table.md").read_text())
    _plot(folder / "plot.png", curves, known)


def _plot(file: Path, curves: dict[str, list[Curve]], known: dict[str, float]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, unit in zip(axes, ("seconds", "decisions"), strict=True):
        for color, (learner, found) in enumerate(curves.items()):
            ends = [getattr(curve.points[-1], unit) for curve in found]
            grid = np.linspace(0, max(ends), 200)
            # A run that ended early had succeeded: it stays where it was.
            runs = [
                np.interp(grid, [getattr(p, unit) for p in curve.points], [p.success for p in curve.points])
                for curve in found
            ]
            axis.plot(grid, np.median(runs, axis=0), color=f"C{color}", label=learner)
            axis.fill_between(grid, np.min(runs, axis=0), np.max(runs, axis=0), color=f"C{color}", alpha=0.12, lw=0)
        for name, value in known.items():
            axis.axhline(value, color="grey", ls=":" if name == "random" else "--", lw=1, label=name)
        axis.set_xlabel({"seconds": "CPU seconds", "decisions": "decisions, replays included"}[unit])
    axes[0].set_ylabel("success (median, and range over seeds)")
    axes[1].set_xscale("symlog", linthresh=10_000)
    axes[1].set_xlim(left=0)
    axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=130)


def main(
    seeds: int = 5,
    seconds: float = 20.0,
    window: str = "4",
    modulus: int = 2,
    episodes: int = 256,
    entropy: float = 0.01,
    workers: int = 2,
    tune: bool = False,
    out: Path = Path("runs/symbolic_learning"),
) -> None:
    """Run what is not stored yet, then write the table and the plot to OUT, a folder per window and modulus."""
    size = None if window == "none" else int(window)
    folder = out / f"window_{window}_modulus_{modulus}"
    jobs: dict[str, list[Job]] = {}
    for learner, best in LEARNERS.items():
        runs = [(TUNING_SEED, rate) for rate in RATES] if tune else [(seed, best) for seed in range(seeds)]
        jobs[learner] = [
            Job(learner, seed, rate, size, modulus, episodes, entropy, seconds, GOAL if tune else ENOUGH, folder)
            for seed, rate in runs
        ]
    waiting = [job for job in itertools.chain.from_iterable(zip(*jobs.values(), strict=True)) if not job.file.exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        for line in pool.map(play, waiting):
            print(line, flush=True)
    if tune:
        for job in itertools.chain.from_iterable(jobs.values()):
            point = job.load().reached(GOAL)
            print(f"{job.learner:>12} {job.rate:g}: {f'{point.seconds:.1f} s' if point else 'not reached'}")
        return
    write(
        folder, {learner: [job.load() for job in theirs] for learner, theirs in jobs.items()}, rules_of(size, modulus)
    )


if __name__ == "__main__":
    typer.run(main)
