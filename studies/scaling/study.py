"""How far training scales: recorded episodes and an engine's throughput through the scheduling, on a simulated clock.

`--rerun episodes` records episodes of a policy that comes with the package, `--rerun curve` measures the engine on that
policy's model by CPU time, and `--rerun results` simulates everything below from both.

What is simulated is the engine's clock. An episode here is its turns' lengths and who waits for whom;
tests/studies/test_scaling_page.py holds that to `rollout`. Parts of workers are cut by the cluster's `split_evenly`,
steps begin in the order and with the weights that `AsyncRollouts` gives them, micro-batches are cut by
`bucket_by_length` and dealt to ranks by `partition`.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # before torch is imported

import numpy as np
import torch

from selfcest_agents.engine import TokenRequest
from selfcest_agents.language import language_of
from selfcest_agents.player import ModelPlayer
from selfcest_agents.samplers import Sampler, TransformersSampler, WeightSyncTarget
from selfcest_env.palette import SERIES
from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_eval.report.figures import MARKS
from selfcest_training.cluster.config import split_evenly
from selfcest_training.cluster.partition import busy_share
from selfcest_training.config_file import load_stored_config
from selfcest_training.families import make_families
from selfcest_training.learner.batch import bucket_by_length
from selfcest_training.planning.speed import ThroughputCurve, read_curve
from selfcest_training.shipped import HERE
from selfcest_training.stages.async_rollouts import AsyncRollouts
from selfcest_training.stages.base import TaskMenu
from selfcest_training.stages.checks import propose
from selfcest_training.stages.mixture import MixtureSampler
from selfcest_training.stages.rollout_batch import play_groups
from studies.figures import style_axis
from studies.runner import DOCS, Rerun, Study, fold, git, joined, read_json, store_json, table

STORE, PAGE = Path(__file__).parent / "evidence", DOCS / "scale.md"
EVIDENCE = Rerun(STORE, STORE)
HEADING = "## How far it scales (simulated)"
POLICY, GROUPS, GROUP = "deciding", 48, 8  # what is recorded
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS = (1, 2, 4, 8, 16)
PER_WORKER, STRONG, SLOTS = 64, 512, 64  # episodes of a worker's part, of a step under strong scaling; an engine's rows
# Steps of a run that are counted, those before, and those after, on which workers with a lag are at work too.
COUNTED, WARM, AFTER = 8, 3, 3
STEPS = WARM + COUNTED + AFTER
UPDATE = 0.25  # of a step whose workers all decode at full rate without a pause: seconds of an update
HEAVY, LONGEST = 1.5, 32.0  # shape of the Pareto factor on an episode's lengths, and its bound
BATCH = 2048  # padded ids of a micro-batch
MODES = {"barrier": (0, False), "lag 1": (1, False), "lag 1, tail overlapped": (1, True), "lag 3": (3, False),
         "lag 3, tail overlapped": (3, True)}  # fmt: skip
CURVES = {"measured": "tiny_curve.json", "assumed": "assumed_gpu_curve.json"}
Turns = Sequence[tuple[int, int, Sequence[int]]]  # of an agent: prompt and generated tokens, agents that it calls
Episode = Sequence[Turns]  # its agents, the root first


# A worker: an engine that decodes what is in it at one speed, and the trees of its episodes


@dataclass
class Clock:
    """An engine on a simulated clock: `slots` rows decode, others wait in order; all rows are equally fast.

    Attributes:
        curve: seconds of a step by rows.
        slots: rows at most.
        now: seconds.
    """

    curve: ThroughputCurve
    slots: int
    now: float = 0.0
    _decoded: float = 0.0  # tokens of a row that has been there since the beginning
    _rows: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _waiting: deque[tuple[int, int, Callable[[], None]]] = field(default_factory=deque)
    _order: Iterator[int] = field(default_factory=count)
    _seconds: dict[int, float] = field(default_factory=dict)

    def decode(self, tokens: int, then: Callable[[], None]) -> None:
        """Queue so many tokens; `then` is called when they are there."""
        self._waiting.append((tokens, next(self._order), then))
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._rows) < self.slots:
            tokens, order, then = self._waiting.popleft()
            heapq.heappush(self._rows, (self._decoded + tokens, order, then))

    def run(self, until: float = float("inf"), over: Callable[[], bool] = lambda: False) -> None:
        """Decode until nothing is left, that time has come, or `over` says so after a row has ended."""
        while self._rows and not over():
            rows = len(self._rows)
            step = self._seconds.get(rows) or self._seconds.setdefault(rows, self.curve.step_seconds(rows))
            end = self.now + (self._rows[0][0] - self._decoded) * step
            if end > until:
                self._decoded += (until - self.now) / step
                break
            self.now = end
            self._decoded, _, then = heapq.heappop(self._rows)
            self._admit()
            then()
        if until < float("inf"):
            self.now = max(self.now, until)


class Play:
    """An episode on a clock: an agent's next turn waits for all that the one before it has called."""

    def __init__(self, clock: Clock, episode: Episode, on_end: Callable[[], None]) -> None:
        self._clock, self._agents, self._on_end = clock, episode, on_end
        self._turn(0, 0, on_end)

    def _turn(self, agent: int, turn: int, then: Callable[[], None]) -> None:
        if turn == len(self._agents[agent]):
            then()
            return
        _, generated, called = self._agents[agent][turn]
        waiting = len(called)

        def joined() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting <= 0:
                self._turn(agent, turn + 1, then)

        def decoded() -> None:
            for child in called:
                self._turn(child, 0, joined)
            if not called:
                joined()

        self._clock.decode(generated, decoded)


def part_seconds(part: Sequence[Episode], curve: ThroughputCurve, slots: int) -> float:
    """How long a worker needs for its part alone."""
    clock = Clock(curve, slots)
    for episode in part:
        Play(clock, episode, lambda: None)
    clock.run()
    return clock.now


def tokens(part: Sequence[Episode]) -> int:
    return sum(turn[1] for episode in part for agent in episode for turn in agent)


# Steps


class _Engine:
    """Takes weights and notes their version."""

    policy_version = 0

    def submit(self, requests: Any) -> None: ...

    def poll(self) -> list[Any]:
        return []

    def cancel(self, keys: Any) -> None: ...

    @property
    def pending(self) -> int:
        return 0

    def load_weights(self, weights: Any, policy_version: int) -> None:
        self.policy_version = policy_version


class _Weights(torch.nn.Linear):
    """A model of one weight, and the learner of it."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.named_parameters()

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None:
        sampler.push(self.named_parameters(), policy_version)


def order_of_steps(lag: int, steps: int) -> list[int]:
    """By step, the version of the weights that `AsyncRollouts` has it played with; steps are played in order."""
    engine, played = _Engine(), list[tuple[int, int]]()

    def produce(step: int) -> Any:
        played.append((step, engine.policy_version))

    sampler = Sampler(engine, shared=False, exact=True)
    ahead = AsyncRollouts(produce, sampler, _Weights(1, 1), max_staleness=lag, steps=steps)
    for step in range(steps):
        ahead.take(step)
    ahead.close()
    assert [step for step, _ in played] == [*range(steps)]
    return [version for _, version in played]


def timeline(parts: Sequence[Sequence[float]], lag: int, update: float) -> list[float]:
    """When each update ends, if a step's rollouts begin when those before it have ended and its weights are there.

    Args:
        parts: [steps][workers] seconds of each part.
        lag: `max_staleness`.
        update: seconds of one.
    """
    taken, played, ends = list[float](), 0.0, list[float]()
    for step, version in enumerate(order_of_steps(lag, len(parts))):
        # Version v is pushed when step v is taken; step v itself, without a lag, is played in that very call.
        ready = (ends[-1] if ends else 0.0) if version == step else taken[version]
        played = max(played, ready) + max(parts[step])
        taken.append(max(played, ends[-1] if ends else 0.0))
        ends.append(taken[-1] + update)
    return ends


def overlapped(
    work: Sequence[Sequence[Sequence[Episode]]], lag: int, update: float, curve: ThroughputCurve
) -> list[float]:
    """When each update ends, if a worker begins a step as soon as its weights are there, behind what it still decodes.

    `work` is [steps][workers] parts. A worker is never handed a step before the one in front of it.
    """
    versions = order_of_steps(lag, len(work))
    workers = [Clock(curve, SLOTS) for _ in work[0]]
    left = [[len(part) for part in step] for step in work]
    ended = [[0.0] * len(workers) for _ in work]
    ends: list[float] = []

    def note(step: int, worker: int) -> None:
        left[step][worker] -= 1
        ended[step][worker] = workers[worker].now

    def is_played(step: int, worker: int) -> bool:
        return not left[step][worker]

    for step, version in enumerate(versions):
        while len(ends) < version:  # the update that makes these weights
            done = len(ends)
            for worker, clock in enumerate(workers):
                clock.run(over=partial(is_played, done, worker))
            ends.append(max(max(ended[done]), ends[-1] if ends else 0.0) + update)
        begin = ends[version - 1] if version else 0.0
        for worker, clock in enumerate(workers):
            clock.run(until=begin)
            for episode in work[step][worker]:
                Play(clock, episode, partial(note, step, worker))
    for done in range(len(ends), len(work)):
        for worker, clock in enumerate(workers):
            clock.run(over=partial(is_played, done, worker))
        ends.append(max(max(ended[done]), ends[-1] if ends else 0.0) + update)
    return ends


# What is simulated


def heavy(episode: Episode, factor: float) -> Episode:
    return [[(prompt, max(1, round(made * factor)), called) for prompt, made, called in agent] for agent in episode]


def draws(pool: Sequence[Episode], tail: str, number: int, step: int) -> list[Episode]:
    """So many episodes in groups as they were recorded, with lengths that are theirs, or stretched."""
    rng = np.random.default_rng(stream_seed("scaling", step))
    first = GROUP * rng.integers(len(pool) // GROUP, size=number // GROUP)
    chosen = [episode for i in first for episode in pool[i : i + GROUP]]
    if tail == "recorded":
        return chosen
    factors = np.minimum(LONGEST, (1 - rng.random(number)) ** (-1 / HEAVY))
    return [heavy(episode, float(factor)) for episode, factor in zip(chosen, factors, strict=True)]


def efficiency(ends: Sequence[float], made: Sequence[int], workers: int, curve: ThroughputCurve) -> float:
    """Tokens of the counted steps over those that the workers would have made at full rate in that time."""
    return sum(made[WARM : WARM + COUNTED]) / (workers * curve.tokens_per_second(SLOTS) * counted_seconds(ends))


def counted_seconds(ends: Sequence[float]) -> float:
    """From the end of the update before the counted steps to that of the last of them."""
    return ends[WARM + COUNTED - 1] - ends[WARM - 1]


def simulate(pool: Sequence[Episode], curve: ThroughputCurve, tail: str, *, weak: bool) -> Iterator[dict[str, Any]]:
    """Efficiency by workers and mode; under strong scaling the speed over one worker too."""
    lone: dict[str, float] = {}
    for workers in WORKERS:
        if not weak and workers > STRONG // 8:
            return
        size = PER_WORKER * workers if weak else STRONG
        steps = [draws(pool, tail, size, step) for step in range(STEPS)]
        work = [[step[part] for part in split_evenly(size, workers)] for step in steps]
        made = [tokens(step) for step in steps]
        update = UPDATE * float(np.mean(made)) / (workers * curve.tokens_per_second(SLOTS))
        seconds = [[part_seconds(part, curve, SLOTS) for part in step] for step in work]
        for mode, (lag, tails) in MODES.items():
            ends = overlapped(work, lag, update, curve) if tails else timeline(seconds, lag, update)
            found = {"workers": workers, "mode": mode, "efficiency": round(efficiency(ends, made, workers, curve), 4)}
            if not weak:
                lone.setdefault(mode, counted_seconds(ends))
                found["speed"] = round(lone[mode] / counted_seconds(ends), 3)
            yield found


def balance(pool: Sequence[Episode], tail: str) -> Iterator[dict[str, Any]]:
    """Busy shares of learner ranks: micro-batches cut as one process cuts them and dealt, or whole groups per rank."""
    steps = [draws(pool, tail, STRONG, step) for step in range(STEPS)]
    for ranks in RANKS:
        dealt = [busy_share(micro_batches(step), ranks) for step in steps]
        fixed = []
        for step in steps:
            groups = [step[i : i + GROUP] for i in range(0, STRONG, GROUP)]
            own = []
            for part in split_evenly(len(groups), ranks):
                own.append(micro_batches([episode for group in groups[part] for episode in group]))
            rounds = [max(sizes) for sizes in _rounds(own)]
            fixed.append(sum(map(sum, own)) / (ranks * sum(rounds)))
        yield {"ranks": ranks, "dealt": round(float(np.mean(dealt)), 4), "groups": round(float(np.mean(fixed)), 4)}


def _rounds(own: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Passes that ranks make together, the largest first; who has none left waits."""
    ordered = [sorted(sizes, reverse=True) for sizes in own]
    for i in range(max(map(len, ordered))):
        yield [sizes[i] if i < len(sizes) else 0 for sizes in ordered]


def micro_batches(episodes: Sequence[Episode]) -> list[int]:
    """Padded ids of the micro-batches of these episodes' contexts, rows padded."""
    rows = [range(sum(given + made for given, made, _ in agent)) for episode in episodes for agent in episode if agent]
    return [len(bucket) * len(bucket[-1]) for bucket in bucket_by_length(rows, BATCH)]


# What is recorded and measured


def record(how: Rerun) -> None:
    """Play groups with a policy that comes with the package, at the temperature that it was trained with."""
    folder = HERE / "quick"
    config = load_stored_config(folder / "config.yaml")
    variant, language = config.variants[POLICY], language_of(config.model)
    model = language.load(0, folder / POLICY / "seed0" / "model")
    player = ModelPlayer(language, TransformersSampler().start(language, model), limits=config.limits_of(POLICY))
    menu = TaskMenu(make_families(config.tasks, "train"), variant.rl.tasks, GROUP)
    plans = propose(MixtureSampler(), 0, GROUPS, menu, np.random.default_rng(0))
    groups, _ = play_groups(player, plans, step=0, seed=0, temperature=variant.rl.temperature, weights={})
    episodes = [shape_of(episode) for group in groups for episode in group.episodes]
    said = {
        "policy": POLICY,
        "temperature": variant.rl.temperature,
        "groups": GROUPS,
        "commit": git("rev-parse", "HEAD"),
    }
    store_json(how.folder / "episodes.json", {**said, "episodes": episodes})


def shape_of(episode: EpisodeRecord) -> list[list[tuple[int, int, list[int]]]]:
    """By agent, by turn: prompt tokens, generated tokens, and which agents were called."""
    place = {agent.agent_id: i for i, agent in enumerate(episode.agents)}
    return [
        [
            (turn.facts.prompt_tokens, turn.facts.generated_tokens, [place[child] for child in turn.facts.children])
            for turn in agent.turns
        ]
        for agent in episode.agents
    ]


def measure(how: Rerun, repeats: int = 3, prompt: int = 32, new: int = 64) -> None:
    """Ids per CPU-second of the transformers engine, by rows that decode together; the best of so many repeats."""
    folder = HERE / "quick"
    config = load_stored_config(folder / "config.yaml")
    language = language_of(config.model)
    model, points = language.load(0, folder / POLICY / "seed0" / "model"), []
    rng = np.random.default_rng(0)
    for rows in WORKERS:
        best = 0.0
        for _ in range(repeats):
            engine = TransformersSampler().start(language, model).engine
            engine._stop_ids = frozenset()  # type: ignore[attr-defined]  # as many ids of each as were asked for
            contexts = rng.integers(20, 60, size=(rows, prompt)).tolist()
            engine.submit([TokenRequest(f"r{i}", tuple(ids), new, i) for i, ids in enumerate(contexts)])
            begun = time.process_time()
            while engine.pending:
                engine.poll()
            best = max(best, rows * new / (time.process_time() - begun))
        points.append([rows, round(best, 1)])
    curve = {"engine": "TransformersEngine", "model": "the tiny model, 0.2 M weights", "machine": "one x86 core"}
    method = f"measured: ids per CPU-second, {prompt} prompt ids and {new} new ids a row, best of {repeats}"
    store_json(how.folder / "tiny_curve.json", {**curve, "measured": method, "points": points})


def stored() -> dict[str, Any]:
    return {name: read_json(STORE / f"{name}.json") for name in ("episodes", "results")}


def curves(how: Rerun = EVIDENCE) -> dict[str, ThroughputCurve]:
    return {name: read_curve(how.input(file)) for name, file in CURVES.items()}


def run(how: Rerun) -> None:
    """Everything that the page shows."""
    pool = read_json(how.input("episodes.json"))["episodes"]
    found: dict[str, Any] = {"balance": {tail: list(balance(pool, tail)) for tail in ("recorded", "heavy")}}
    for kind, curve in curves(how).items():
        for tail in ("recorded", "heavy"):
            for weak in (True, False):
                name = f"{kind} curve, {tail} tail, {'weak' if weak else 'strong'} scaling"
                begun = time.process_time()
                found[name] = list(simulate(pool, curve, tail, weak=weak))
                print(name, f"{time.process_time() - begun:.0f} CPU-s", flush=True)
    store_json(how.folder / "results.json", found)


# The page


def section(results: Mapping[str, Any], episodes: Mapping[str, Any]) -> str:
    """The part of `docs/scale.md` under `HEADING`."""
    pool: Sequence[Episode] = episodes["episodes"]
    made = np.array([tokens([episode]) for episode in pool])
    chains = np.array([part_seconds([episode], _UNIT, 10**6) for episode in pool])
    known = curves()
    facts = FACTS.format(
        episodes=len(pool),
        policy=episodes["policy"],
        commit=episodes["commit"][:7],
        mean=f"{made.mean():.0f}",
        chain=f"{chains.mean():.0f}",
        longest=f"{chains.max():.0f}",
        measured=_said(known["measured"]),
        assumed=_said(known["assumed"]),
    )
    weak: list[str] = []
    for kind in CURVES:
        for tail in ("recorded", "heavy"):
            rows = results[f"{kind} curve, {tail} tail, weak scaling"]
            weak += [f"{kind.capitalize()} curve, {tail} tail:", _by_mode(rows, "efficiency", "{:.0%}")]
    strong = [STRONG_WORDS]
    for kind in CURVES:
        rows = results[f"{kind} curve, recorded tail, strong scaling"]
        strong += [f"{kind.capitalize()} curve, recorded tail:", _by_mode(rows, "speed", "{:.1f} x")]
    lines = [
        [str(ranks), *(f"{results['balance'][tail][i][how]:.0%}" for tail in ("recorded", "heavy") for how in HOW)]
        for i, ranks in enumerate(RANKS)
    ]
    heads = ["ranks", *(f"{words}, {tail}" for tail in ("recorded", "heavy") for words in HOW.values())]
    parts = [HEADING, INTRO, facts, WEAK, _read(results), "![Simulated efficiency by workers](scale.png)"]
    parts += [fold("Weak scaling, every number of workers", *weak), fold("Strong scaling", *strong)]
    parts += [fold("Balance over learner ranks", BALANCE, table(heads, lines)), AGAIN]
    return joined(parts)


def _read(results: Mapping[str, Any]) -> str:
    """What the tables say, in figures of theirs."""

    def of(kind: str, tail: str, workers: int, mode: str) -> str:
        rows = results[f"{kind} curve, {tail} tail, weak scaling"]
        return next(f"{row['efficiency']:.0%}" for row in rows if (row["workers"], row["mode"]) == (workers, mode))

    lines = []
    for kind in CURVES:
        for tail in ("recorded", "heavy"):
            cells = [f"{of(kind, tail, 16, mode)}, {of(kind, tail, 256, mode)}" for mode in MODES]
            lines.append([f"{kind} curve, {tail} tail", *cells])
    return f"{READ}\n\n{table(['', *MODES], lines)}"


_UNIT = ThroughputCurve("", "", "", "one token a second", ((1, 1.0), (2, 2.0), (10**6, 1e6)))
LENGTHS = {"recorded": "recorded lengths", "heavy": "heavy tail of lengths"}
HOW = {"dealt": "dealt", "groups": "whole groups"}


def _said(curve: ThroughputCurve) -> str:
    ends = [curve.points[0], curve.points[-1]]
    said = ", ".join(f"{rate:,.0f} tokens a second with {rows} row{'s' * (rows > 1)}" for rows, rate in ends)
    return f"{curve.engine}, {curve.model}, {curve.machine} ({curve.measured}): {said}"


def _by_mode(rows: Sequence[Mapping[str, Any]], what: str, form: str) -> str:
    found = {(row["workers"], row["mode"]): row[what] for row in rows}
    workers = sorted({row["workers"] for row in rows})
    return table(["workers", *MODES], [[str(n), *(form.format(found[n, mode]) for mode in MODES)] for n in workers])


def figure(results: Mapping[str, Any], file: Path) -> None:
    """Efficiency against workers under weak scaling: a panel a curve and a tail, a line a mode."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9.2, 6.8), layout="constrained")
    drawing.suptitle("Simulated: overlapping the tails of steps keeps workers busier than a lag only", fontsize=12)
    panels = drawing.subplots(2, 2, sharex=True, sharey=True)
    for axis, (kind, tail) in zip(panels.flat, [(k, t) for k in CURVES for t in ("recorded", "heavy")], strict=True):
        rows = results[f"{kind} curve, {tail} tail, weak scaling"]
        for place, mode in enumerate(MODES):
            line = [(row["workers"], row["efficiency"]) for row in rows if row["mode"] == mode]
            axis.plot(*zip(*line, strict=True), marker=MARKS[place], markersize=5, linewidth=1.4,
                      color=SERIES[place].light, label=mode)  # fmt: skip
        style_axis(axis, f"{kind} throughput of an engine, {LENGTHS[tail]}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(WORKERS, [str(n) for n in WORKERS])
        axis.set_ylim(0, 1.07)
    for axis in panels[1]:
        axis.set_xlabel("workers", fontsize=9)
    for axis in panels[:, 0]:
        axis.set_ylabel("efficiency", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=3, frameon=False)
    drawing.savefig(file, dpi=120, metadata={"Software": None})


INTRO = f"""Only a clock is simulated here. No run on more than one machine has been timed, and no GPU was at hand.
Episodes are recorded ones, as lengths of turns and who waits for whom. An engine decodes at most {SLOTS} rows at the
speed of its curve; prompts, weight transfers and messages take no time. Parts, the order of steps, and micro-batches
are those of a run. *Tail overlapped* is one engine that begins the next step behind what it still decodes. Two sets of
workers ([`cluster.overlap`](#the-tail-of-a-step)) that share devices reach at most these figures, where rows cost less
together than apart. An update takes {UPDATE:g} of the seconds that the workers would need for a step at full rate: an
assumption."""
FACTS = (
    """- Recorded: {episodes} episodes of the policy `{policy}` that comes with the package, in groups of 8, sampled at
  commit `{commit}`: {mean} generated tokens on average, {chain} of them one after the other, {longest} at most.
- *Measured* curve: {measured}.
- *Assumed* curve: {assumed}."""
    + f"""
- *Heavy* tail, assumed: all lengths of an episode times a Pareto factor of shape {HEAVY:g}, at most {LONGEST:g}."""
)
WEAK = f"""{PER_WORKER} episodes per worker and step, {COUNTED} steps after {WARM} that are not counted. Efficiency is
sampled tokens over those that the workers would have sampled in the same time at full rate; with a barrier
{1 / (1 + UPDATE):.0%} would be the most. It is one draw (n = 1), and a figure may lie a little above 100%."""
READ = """The tail is lost: a step ends with its longest episode, whatever the number of workers. A lag of 3 is a lag of
1 where rollouts take longer than an update, because they are played one step at a time. Overlapping the tail helps, the
more the older its weights may be. Efficiency with 16 and with 256 workers:"""
STRONG_WORDS = (
    f"{STRONG} episodes per step, whatever the workers: how many times faster than one worker is in the same mode."
)
BALANCE = f"""Share of the ranks' time that computes: {STRONG} episodes, micro-batches of {BATCH:,} padded ids. *Dealt*:
cut as one process cuts them, and dealt out in rounds of similar size. *Whole groups*: every rank gets a contiguous
share of the groups."""
AGAIN = """Everything is in `studies/scaling/evidence`:

```bash
python -m studies scaling --rerun episodes curve --store   # episodes and the measured curve
python -m studies scaling --rerun results --store --write  # the results, this section and its figure
```"""


def with_section(page: str, text: str) -> str:
    """The page with this section in the place of the old one, or at its end."""
    before, found, rest = page.partition(HEADING + "\n")
    if not found:
        return f"{page.rstrip()}\n\n{text}"
    _, following, after = rest.partition("\n## ")
    return before + text + (following + after if following else "")


def written_page() -> str:
    found = stored()
    return with_section(PAGE.read_text(encoding="utf-8"), section(found["results"], found["episodes"]))


def rerun(name: str, how: Rerun) -> list[Path]:
    """Record episodes, measure the engine's curve, or simulate the results."""
    makers = {
        "episodes": (record, "episodes.json"),
        "curve": (measure, "tiny_curve.json"),
        "results": (run, "results.json"),
    }
    if name not in makers:
        raise SystemExit(f"--rerun is {name!r}; expected one of {', '.join(makers)}")
    torch.set_num_threads(1)
    make, file = makers[name]
    make(how)
    return [how.folder / file]


STUDY = Study(
    page_file=PAGE,
    page=written_page,
    figures={DOCS / "scale.png": lambda file: figure(stored()["results"], file)},
    rerun=rerun,
    cells="episodes, curve or results",
)
