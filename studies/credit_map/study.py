"""The credit map: which credit learns one grade for many clones with fewer sampled decisions, and when none does.

`--rerun tuning` makes every scheme's runs that choose its learning rate, on seeds of their own; `--rerun runs` makes
the reported ones at these rates, and `--rerun additive-16/diff_loo` one cell of the map.

The game is `cells`: k clones each answer one of eight, the replies are handed in, a coupling says what they are worth
together. A run ends when the greedy policy is `GOAL` of the way from random to optimal play, or at the budget. What it
cost by then is counted in decisions, of which a replay that keeps all siblings takes none, plus a price for every join
of an episode or a replay. A run is stored as one line when it ends. `--rerun` makes it again, with `--resume` only what
is not stored yet.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch is imported

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn import functional as F

from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.diff_loo import DiffLooLearner
from selfcest_baselines.difference import DifferenceLearner
from selfcest_baselines.games import KernelGames
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork
from selfcest_baselines.rollout import collect_rollout
from selfcest_baselines.shapley import ShapleyLearner
from selfcest_baselines.value import ValueLearner
from selfcest_env import __version__
from selfcest_env.palette import MUTED
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import stored_as, stored_fields
from selfcest_env.symbolic import BatchDelegation, SymbolicRules, make_rules, optimal_return
from selfcest_env.symbolic.scenarios import EVALUATION_SEED
from selfcest_eval.stats.statistics import Estimate
from selfcest_training.faults import report_killed_worker
from studies.figures import draw_median, style_axis
from studies.runner import DOCS, Rerun, Study, evidence_line, fold, git, table

STORE, TUNED = (Path(__file__).parent / "evidence" / name for name in ("cells.jsonl", "tuning.jsonl"))
MODULUS, EPISODES, GROUP, HIDDEN = 8, 64, 8, (64, 64)
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
TUNING_SEEDS, SEEDS = (100, 101), tuple(range(10))
# The baseline was lucky on the first ten seeds of this game: it reached the goal on all of them.
ADDED_SEEDS = {"and-16": tuple(range(10, 20))}
PRICES = (0, 1)
GOAL = 0.8
BUDGET = 400_000  # decisions
RESAMPLES = 10_000
EVERY, GRADED = 10, 500  # updates between evaluations, and episodes of one
BASELINE = "broadcast"
SUMMED = {"shapley": "difference"}
Run = Mapping[str, Any]
SCHEMES: dict[str, PolicyGradientLearner] = {  # with the options of their credits; `play` sets the others
    BASELINE: BroadcastLearner(std_floor=None),
    "value": ValueLearner(std_floor=None, critic_learning_rate=3e-3, critic_batch=4096),
    "difference": DifferenceLearner(),
    "diff_loo": DiffLooLearner(),
    "shapley": ShapleyLearner(),
}


@stored_as(coupling="coupling", clones="clones", predicted="predicted", known="known", hidden="hidden")
@dataclass(frozen=True)
class Game:
    """A coupling of k clones.

    Attributes:
        hidden: see `Cells`.
        known: share of the 64 sums that the policy is taught before; where random play is never paid nobody learns.
        predicted: decisions of `broadcast` to those of the best credit with replays, at each of `PRICES`, as
            simulations had it before this map; -: these were not made.
    """

    coupling: str
    clones: int
    predicted: tuple[str, str]
    known: float = 0.0
    hidden: float = 0.0

    @property
    def same(self) -> Mapping[str, str]:
        """Of a credit the one that it equals here, up to a factor."""
        return {"diff_loo": BASELINE} if self.coupling == "and" else SUMMED if self.coupling == "additive" else {}

    @property
    def name(self) -> str:
        return f"{'hidden' if self.hidden else self.coupling}-{self.clones}"

    @property
    def rules(self) -> SymbolicRules:
        options = {"cells": self.clones, "modulus": MODULUS, "coupling": self.coupling, "hidden": self.hidden}
        return make_rules("cells", options, max_clones=self.clones, total_tokens=8 * self.clones + 3)


GAMES = {
    game.name: game
    for game in (
        Game("additive", 4, ("2.0", "1.1")),
        Game("additive", 16, ("4.5 (3 to 6), with a table 5.5", "2.8")),
        Game("threshold", 4, ("2.0", "-"), known=0.3),
        Game("threshold", 16, ("4.3", "-"), known=0.5),
        Game("and", 4, ("none", "-"), known=0.6),
        Game("and", 16, ("at most 1.1", "-"), known=0.8),
        Game("additive", 16, ("-", "-"), hidden=0.3),
    )
}


@stored_as(game="game", scheme="scheme", rate="rate", seed="seed")
@dataclass(frozen=True)
class Job:
    game: str
    scheme: str
    rate: float
    seed: int

    @property
    def config(self) -> str:
        """A hash of all that the run is made of, code and budget apart."""
        game = {name: value for name, value in stored_fields(GAMES[self.game]).items() if name != "predicted"}
        made = (game, SCHEMES[self.scheme].credit_text(), self.rate, MODULUS, EPISODES, GROUP, HIDDEN)
        said = json.dumps([*made, GOAL, EVERY, GRADED], sort_keys=True, default=list)
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


# A run


def play(job: Job) -> dict[str, Any]:
    """One run, as it is stored."""
    torch.set_num_threads(1)
    game, begun = GAMES[job.game], time.process_time()
    rules, random = game.rules, _random(game)
    best = optimal_return(rules).success
    learner = replace(
        SCHEMES[job.scheme],
        episodes=EPISODES,
        group_size=GROUP,
        hidden=HIDDEN,
        learning_rate=job.rate,
        entropy=0.0,
        loss="one_pass",
    )
    games = KernelGames(rules, EPISODES, job.seed, group_size=GROUP)
    curve, reached = [], None
    updates = learner.updates(games, job.seed, prepare=lambda actor: teach(actor, game, job.seed))
    for number, progress in enumerate(updates):
        if number % EVERY == 0:
            score = (_greedy(progress.actor, game) - random) / (best - random)
            curve.append([progress.decisions, progress.episodes, round(score, 4)])
            if score >= GOAL:
                reached = curve[-1][:2]
            if reached or progress.decisions >= BUDGET:
                break
    step = max(1, math.ceil(len(curve) / 20))
    return {
        **stored_fields(job),
        "config": job.config,
        "version": __version__,
        "commit": git("rev-parse", "HEAD"),
        "cpu_seconds": round(time.process_time() - begun, 1),
        "reached": reached,
        "curve": [*curve[:-1:step], curve[-1]],
    }


def teach(actor: ActorNetwork, game: Game, seed: int) -> None:
    """Some of the 64 sums, drawn by the seed: right with probability 0.98; of all others nothing, each reply alike."""
    if not game.known:
        return
    rng = np.random.default_rng(stream_seed("credit map", seed))
    pairs = np.stack(np.meshgrid(range(MODULUS), range(MODULUS)), axis=-1).reshape(-1, 2)
    known = rng.permutation(len(pairs)) < round(game.known * len(pairs))
    kernel = BatchDelegation(game.rules, 512)
    kernel.reset(seed)
    kernel.step_ready(np.full(512, game.rules.first_call))
    ready = kernel.ready_agents()
    seen, masks = torch.from_numpy(ready.observations), torch.from_numpy(ready.action_masks)
    held = seen[:, -2 * game.rules.task.num_symbols :].view(len(seen), 2, -1).argmax(-1).numpy()
    number = held[:, 0] * MODULUS + held[:, 1]
    wanted = torch.full((len(seen), masks.shape[1]), 0.0)
    wanted[:, 1 : 1 + MODULUS] = 1 / MODULUS
    sums = torch.from_numpy(held.sum(1) % MODULUS)
    taught = torch.from_numpy(known[number])
    wanted[taught, 1 : 1 + MODULUS] = 0.02 / (MODULUS - 1)
    wanted[taught, 1 + sums[taught]] = 0.98
    optimizer = torch.optim.Adam(actor.parameters(), 3e-3)
    for _ in range(600):
        rows = torch.randint(len(seen), (512,), generator=actor.generator)
        loss = F.cross_entropy(actor(seen[rows], masks[rows]), wanted[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def _greedy(actor: ActorNetwork, game: Game) -> float:
    games = KernelGames(game.rules, GRADED, EVALUATION_SEED)
    collect_rollout(games, actor.greedy)
    return float(games.kernel.scores.mean())


def _random(game: Game) -> float:
    """Score of uniform replies, exactly: each is right with probability 1 / `MODULUS`, whatever is hidden."""
    chance, k = 1 / MODULUS, game.clones
    least = {"additive": None, "threshold": math.ceil(3 * k / 4), "and": k}[game.coupling]
    if least is None:
        return chance
    return sum(math.comb(k, right) * chance**right * (1 - chance) ** (k - right) for right in range(least, k + 1))


# What is stored


def stored(file: Path) -> list[dict[str, Any]]:
    """All runs, the last of those that were made again with a larger budget."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return list({job_of(run): run for run in map(json.loads, lines)}.values())


def job_of(run: Run) -> Job:
    return Job(run["game"], run["scheme"], run["rate"], run["seed"])


def tuning_jobs(tried: Sequence[Run]) -> Iterator[Job]:
    """The inner rates; and an outer one where, of those tried, its neighbour is best."""
    best = chosen(tried)
    for game in GAMES:
        for scheme in SCHEMES:
            ends = {RATES[1]: [RATES[0]], RATES[-2]: [RATES[-1]]}.get(best.get((game, scheme), 0), [])
            yield from (Job(game, scheme, rate, seed) for rate in [*RATES[1:-1], *ends] for seed in TUNING_SEEDS)


def jobs() -> Iterator[Job]:
    rates = chosen(stored(TUNED))
    for seed in SEEDS:
        yield from (Job(game, scheme, rates[game, scheme], seed) for game in GAMES for scheme in SCHEMES)
    for game, seeds in ADDED_SEEDS.items():
        yield from (Job(game, scheme, rates[game, scheme], seed) for seed in seeds for scheme in SCHEMES)


def chosen(runs: Iterable[Run]) -> dict[tuple[str, str], float]:
    """Of every game and scheme the rate with which most runs came to the goal; of equals that of the lowest mean cost
    with joins free, then the one that came closest."""
    by_rate: dict[tuple[str, str], dict[float, list[tuple[float, ...]]]] = {}
    for run in runs:
        tried = by_rate.setdefault((run["game"], run["scheme"]), {})
        tried.setdefault(run["rate"], []).append((run["reached"] is None, cost(run, 0), -run["curve"][-1][2]))
    return {
        cell: min(tried, key=lambda rate: tuple(map(mean, zip(*tried[rate], strict=True))))
        for cell, tried in by_rate.items()
    }


def cost(run: Run, price: float) -> float:
    """Decisions to the goal plus `price` for every join; of a run that never got there those it was given."""
    spent: Sequence[int] = run["reached"] or run["curve"][-1][:2]
    decisions, episodes = spent
    return decisions + price * episodes


def make(todo: Sequence[Job], file: Path, workers: int, *, resume: bool) -> None:
    """Make runs, each appended to the file as it ends; with `resume` those that the file lacks."""
    there = {job_of(run) for run in stored(file) if run["reached"] or run["curve"][-1][0] >= BUDGET} if resume else ()
    waiting = [job for job in todo if job not in there]
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console, context = Console(stderr=True), multiprocessing.get_context("spawn")
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(workers, mp_context=context) as pool:
        bar = progress.add_task("", total=len(todo), completed=len(todo) - len(waiting))
        futures = [pool.submit(play, job) for job in waiting]
        with report_killed_worker(pool, f"the runs that have ended are in {file}; add --resume to make the others"):
            for future in as_completed(futures):
                run = future.result()
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run) + "\n")
                name = f"{run['game']}/{run['scheme']} {run['rate']:g} seed {run['seed']}: {run['reached']}"
                progress.update(bar, advance=1, description=name)
                if not console.is_terminal:
                    console.print(name, f"{run['cpu_seconds']} s", highlight=False)


# The page


def speed_up(runs: Sequence[Run], baseline: Sequence[Run], price: float) -> Estimate:
    """How many times lower the mean cost is than the baseline's, with a 95 % bootstrap interval over both's seeds."""
    own, its = (np.array([cost(run, price) for run in found]) for found in (runs, baseline))
    rng = np.random.default_rng(stream_seed("credit map", len(own), len(its)))
    means = [costs[rng.integers(len(costs), size=(RESAMPLES, len(costs)))].mean(1) for costs in (own, its)]
    low, high = np.quantile(means[1] / means[0], [0.025, 0.975])
    return Estimate(float(its.mean() / own.mean()), float(low), float(high))


def cells(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs by game and scheme, in the order of both."""
    by_cell: dict[tuple[str, str], list[Run]] = {(game, scheme): [] for game in GAMES for scheme in SCHEMES}
    for run in runs:
        by_cell[run["game"], run["scheme"]].append(run)
    return {cell: found for cell, found in by_cell.items() if found}


def page(runs: Sequence[Run], tuning: Sequence[Run]) -> str:
    """`docs/credit_map.md`."""
    found, others = cells(runs), [scheme for scheme in SCHEMES if scheme != BASELINE]
    verdict, caveats = _verdict(found)
    parts = [HEAD, verdict, MEASURE, evidence_line(runs, "`--rerun`")]
    for price in PRICES:
        lines = []
        for name, game in GAMES.items():
            if (name, BASELINE) not in found:
                continue
            line = [name, f"{round(64 * game.known)}", game.predicted[price]]
            for scheme in others:
                equal = f" = `{game.same[scheme]}`" if scheme in game.same else ""
                line.append(_cell(found[name, scheme], found[name, BASELINE], price) + equal)
            lines.append(line)
        parts += [f"## {'A join costs nothing' if not price else 'A join costs as much as a decision'}"]
        parts += [table(["game", "taught", "predicted", *(f"`{scheme}`" for scheme in others)], lines)]
    lines = []
    for (name, scheme), made in found.items():
        spent = [cost(run, 0) / 1000 for run in made]
        line = [name, f"`{scheme}`", f"{made[0]['rate']:g}", f"{sum(run['reached'] is not None for run in made)}"]
        line += [f"{mean(spent):.0f}", f"{median(spent):.0f}", f"{min(spent):.0f} to {max(spent):.0f}"]
        line += [f"{mean(cost(run, 1) - cost(run, 0) for run in made) / 1000:.0f}"]
        lines.append([*line, f"{mean(run['curve'][-1][2] for run in made):.2f}"])
        lines[-1] += [f"{sum(run['cpu_seconds'] for run in made):.0f}"]
    heads = [
        "game",
        "credit",
        "rate",
        f"of {len(SEEDS)} at the goal",
        "decisions, thousands",
        "median",
        "range",
        "joins, thousands",
    ]
    parts += [caveats, ALL, fold("Runs by game and credit", table([*heads, "return at the end", "CPU-s"], lines))]
    parts += [TUNING, fold("Mean cost by rate", _tuned(tuning))]
    commits = sorted({run["commit"][:7] for run in runs})
    parts += [f"Reported runs were made at {', '.join(f'`{commit}`' for commit in commits)}."]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _verdict(found: Mapping[tuple[str, str], Sequence[Run]]) -> tuple[str, str]:
    """The verdict and the caveats in words, with the figures that the tables below have."""

    def said(game: str, scheme: str, price: float = 0) -> str:
        return _cell(found[game, scheme], found[game, BASELINE], price).strip("*")

    def arrived(game: str, scheme: str) -> int:
        return sum(run["reached"] is not None for run in found[game, scheme])

    medians = [median(cost(run, 0) for run in found["additive-4", scheme]) for scheme in (BASELINE, "diff_loo")]
    highest: dict[str, list[str]] = {}
    for (game, scheme), made in found.items():
        if made[0]["rate"] == RATES[-1]:
            highest.setdefault(game, []).append(f"`{scheme}`")
    verdict = VERDICT.format(
        free=said("additive-16", "diff_loo"),
        priced=said("additive-16", "diff_loo", 1),
        small=said("additive-4", "diff_loo"),
        small_median=f"{medians[0] / medians[1]:.1f}",
        stuck=len(SEEDS) - arrived("additive-4", BASELINE),
        threshold=said("threshold-16", "diff_loo"),
        threshold_priced=said("threshold-16", "diff_loo", 1),
        hidden=", ".join(f"{arrived('hidden-16', scheme)} of `{scheme}`" for scheme in SCHEMES),
        value=arrived("additive-16", "value"),
    )
    return verdict, CAVEATS.format(highest="; ".join(f"{game}: {', '.join(names)}" for game, names in highest.items()))


def _cell(own: Sequence[Run], baseline: Sequence[Run], price: float) -> str:
    """A speed-up; a bound where some run of one of the two did not get there, `-` where that leaves nothing to say."""
    there, based = (sum(run["reached"] is not None for run in made) for made in (own, baseline))
    if not there:
        return f"never ({based} of {len(baseline)} by `{BASELINE}`)"
    ratio = speed_up(own, baseline, price)
    bound = ("" if there == len(own) else "≤ ") if based == len(baseline) else ("≥ " if there == len(own) else "~ ")
    said = f"{bound}{ratio.mean:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]"
    return f"**{said}**" if ratio.low > 1 and bound != "~ " and bound != "≤ " else said


def _tuned(tuning: Sequence[Run]) -> str:
    """The mean cost at every rate, in thousands of decisions, the chosen one in bold."""
    best, lines = chosen(tuning), []
    for (name, scheme), made in cells(tuning).items():
        line = [name, f"`{scheme}`"]
        for rate in RATES:
            at = [run for run in made if run["rate"] == rate]
            if not at:
                line.append("-")
                continue
            said = f"{mean(cost(run, 0) for run in at) / 1000:.0f} ({sum(run['reached'] is not None for run in at)})"
            line.append(f"**{said}**" if rate == best[name, scheme] else said)
        lines.append(line)
    return table(["game", "credit", *(f"{rate:g}" for rate in RATES)], lines)


HEAD = """# The credit map

This page is for researchers who choose a credit for many agents with one grade. After it you know where counterfactual
credit learns with fewer decisions than the group's mean return, and where it does not. The evidence is small: networks
of two layers on one symbolic game.

![Return against decisions](credit_map.png)"""

VERDICT = """**Counterfactual credit is worth its cost where many clones add to one sum and the join is cheap.**

| question | answer |
| --- | --- |
| sixteen clones and a sum, joins free | `diff_loo` takes {free} times fewer decisions than `broadcast`, as predicted |
| the same, a join costs a decision | {priced} times fewer |
| a threshold over sixteen clones, joins free | {threshold} times fewer, less than predicted |
| the same, a join costs a decision | {threshold_priced} |
| four clones and a sum | undecided: {small} by means, {small_median} by medians; `broadcast` fails in {stuck} runs |
| some right replies graded as wrong | reached the goal in ten runs each: {hidden} |
| AND | no difference seen: intervals reach from half to more than twice |
| a learned value of one's own observation | does not help: {value} of ten runs of `additive-16` reach the goal |

On [sixteen clones of a language model](cells.md), replays were not worth their cost: there the join costs more than all
of the replies.

## What was measured

The game is [`cells`](symbolic_rules.md#cells) with forced joins: k clones each answer one of eight, and a coupling
gives the value of the replies together. `hidden` is `additive` with right replies graded as wrong with probability
0.26. If random play is never rewarded, some of the 64 sums are taught first, for every credit alike."""

MEASURE = f"""A run ends when the greedy policy is {GOAL:.0%} of the way from random to optimal play, or at {BUDGET:,}
decisions. A figure is the factor by which a credit needs fewer decisions than `{BASELINE}` without its division (groups
of {GROUP}, {EPISODES} episodes an update, one step each, Adam): means over {len(SEEDS)} seeds with 95 % bootstrap
intervals, bold if these lie above 1. A replay keeps what the siblings did: it takes no decision, and one join.

- "≥" and "≤": some runs of `{BASELINE}`, or of the credit, did not reach the goal, and count as if at the budget. "~":
  of both.
- "Predicted": the result of earlier simulations for the best credit with replays. "none": no interval lay above 1. "-":
  not simulated.
- `and-16` has twenty seeds: all of the first ten of `{BASELINE}` had reached the goal, which was luck.

`python -m studies credit_map` prints this page from `studies/credit_map/evidence/cells.jsonl`. `--rerun
additive-16/diff_loo` makes a cell of it again."""

CAVEATS = """**Equal by construction.** Under AND a team without one clone gets nothing, so `difference` is the bare
return and `diff_loo` is `broadcast` up to a factor. With a sum, `shapley` is `difference` at twice the joins. Two
equal learners differ by rounding, which grows: the difference of their cells is the noise of this page.

**Changed after tuning runs were seen**, before any reported run was looked at: the goal, from 0.9 to 0.8, because with
four clones many runs stay just below 0.9; the budget; and the rule that chooses rates, which had preferred a cheap rate
that reaches the goal once. Nothing was taught in the simulations, which may be a reason for the difference to the
predictions. For some credits the highest rate tried was the best, so they may gain more than is said here
({highest}). Of `value`, too, only the policy's rate was tuned."""

ALL = """## Every cell

Decisions and joins are means until the goal, or until the budget."""

TUNING = f"""## Learning rates

For every credit and game, {len(RATES)} rates were tried on {len(TUNING_SEEDS)} seeds that are used for nothing else.
The table has the mean cost in thousands of decisions, and the number of runs that reached the goal. The rate with most
such runs was chosen, and of equals the cheapest. The outer rates were tried only if their neighbour was the best of
the inner ones (-: not tried)."""


def figure(runs: Sequence[Run], file: Path) -> None:
    """Draw return against decisions for the games of sixteen clones: medians over seeds, with quartiles."""
    from matplotlib.figure import Figure

    games = [game for game in GAMES if game in PANELS]
    drawing = Figure(figsize=(9.2, 6.4), layout="constrained")
    drawing.suptitle(MESSAGE, fontsize=12)
    panels = drawing.subplots(2, 2, sharex=True, sharey=True)
    decisions = np.linspace(0, BUDGET, 101)
    for axis, name in zip(panels.flat, games, strict=True):
        for index, scheme in enumerate(SCHEMES):
            chosen = [run for run in runs if (run["game"], run["scheme"]) == (name, scheme)]
            draw_median(axis, decisions / 1000, [_returns_at(run, decisions) for run in chosen], index, scheme)
        axis.axhline(GOAL, color=MUTED.light, linestyle=":", linewidth=0.8)
        style_axis(axis, PANELS[name])
    for axis in panels[1]:
        axis.set_xlabel("thousands of decisions, without joins", fontsize=9)
    for axis in panels[:, 0]:
        axis.set_ylabel("return: 0 random, 1 optimal", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(SCHEMES), fontsize=9, frameon=False)
    drawing.savefig(file, dpi=120, metadata={"Software": None})


def _returns_at(run: Run, decisions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the returns of a run at these decisions; after its end it keeps its last one."""
    made, _, returns = zip(*run["curve"], strict=True)
    interpolated: NDArray[np.float64] = np.interp(decisions, made, returns)
    return interpolated


MESSAGE = "Sixteen clones: credit with replays needs fewer decisions where they add to one sum"
PANELS = {
    "additive-16": "one sum of all clones",
    "hidden-16": "one sum, with a hidden part",
    "threshold-16": "a threshold over the sum",
    "and-16": "all or nothing: replays do not help",
}


def rerun(name: str, how: Rerun) -> list[Path]:
    """Make the tuning runs, all reported runs, or those of a game or of a cell."""
    if name == "tuning":
        file = how.folder / TUNED.name
        inner = list(tuning_jobs([]))
        make(inner, file, how.workers, resume=how.resume)
        outer = [job for job in tuning_jobs(stored(file)) if job not in inner]  # the inner rates decide which
        make(outer, file, how.workers, resume=how.resume)
        return [file]
    wanted = [job for job in jobs() if name == "runs" or f"{job.game}/{job.scheme}/".startswith(f"{name}/")]
    if not wanted:
        raise SystemExit(f"no cell is named {name}; expected tuning, runs, or GAME[/CREDIT] with {', '.join(GAMES)}")
    file = how.folder / STORE.name
    make(wanted, file, how.workers, resume=how.resume)
    return [file]


STUDY = Study(
    page_file=DOCS / "credit_map.md",
    page=lambda: page(stored(STORE), stored(TUNED)),
    figures={DOCS / "credit_map.png": lambda file: figure(stored(STORE), file)},
    rerun=rerun,
    cells="tuning, runs, or GAME[/CREDIT]",
)
