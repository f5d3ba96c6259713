"""The page on facts in a novel: SmolLM2-135M with clones, with a memory and with retrieval, at 4,000 to 128,000 tokens.

The page is a function of the stored cells. A cell is a variant of novels.yaml with one seed: its training on a CPU, and
every strategy of novels_frontier.yaml that plays with its policy. Seeds from 100 on play novels_gate.yaml instead,
whose stories and novel no reported cell has.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml

from selfcest_env import __version__
from selfcest_env.palette import INK, SERIES
from selfcest_eval.play.config import parse_study
from selfcest_eval.play.digest import digest
from selfcest_eval.play.instances import instances_of, source_of
from selfcest_eval.play.results import Result, read_results
from selfcest_eval.stats.statistics import Estimate, Resampler, Values, with_equal_differences
from selfcest_training.config_file import read_config
from selfcest_training.session import read_sessions, sum_gpu_seconds
from studies.figures import style_axis
from studies.novels import seconds
from studies.runner import (
    CONFIGS,
    DOCS,
    Cell,
    Rerun,
    Study,
    cells_in,
    each,
    evidence_line,
    joined,
    name_commit,
    provenance,
    read_json,
    selfcest,
    store_json,
    table,
    tuning_table,
)
from studies.trained import describe_training

EVIDENCE = Path(__file__).parent / "evidence"
TRAINED = CONFIGS / "novels.yaml"
PLAYED = CONFIGS / "novels_frontier.yaml"
TUNED_ON = CONFIGS / "novels_gate.yaml"
FIRST_TUNING_SEED = 100
VARIANTS = ("delegating", "memory", "full_reader")
EVERY_SEED = ("delegate", "memory_agent", "oracle_documents")  # the other strategies play with the policies of seed 0
SIZES = ("4k", "16k", "32k", "128k")
ONE_SEED = ("128k",)  # sizes that seed 0 alone plays
# Fewer than in novels_frontier.yaml, since a token takes about 5 ms of a CPU core.
STORIES = {"4k": 48, "16k": 16, "32k": 8, "128k": 2}
# Digests of the reported stories, by size: their questions, answers and documents. A cell plays no others.
FROZEN_STORIES = {
    "4k": "82e158a04aac9322d2d969f634c0fe3d",
    "16k": "eeb61b11ef1ec659443fafb424996ddf",
    "32k": "b7136640950e01b7d3179e2f93acb303",
    "128k": "e7beac7fcb42347e79e6d7593f6310a3",
}
RIVALS = {
    "memory_agent": "the memory",
    "bm25_sentences_one_hop": "the same clones on the sentences that a search finds",
    "bm25_read": "a reader of the parts that a search finds",
    "full_reader_scaled_not_fine_tuned": "one reader of the whole text with a scaled window",
}
LEAST_CALLS = 0.9  # calls of a root for one story, below which a search is not judged
RESAMPLES = 2000
SIGN_TEST = 6  # as many stories that differ, all one way, are the fewest with p < .05: 2 / 2^6 = .03
COSTS = ("total_tokens", "critical_path_tokens", "flops", "ideal_memory")


# Cells


def rerun(name: str, how: Rerun) -> list[Path]:
    """Train a variant with one seed, play the strategies of its policy, and store the cell; or time the strategies.

    Args:
        name: VARIANT/seedN, or seconds.
        how: where results are written.
    """
    if name == "seconds":
        return seconds.rerun(how)
    variant, _, seed = name.partition("/")
    if variant not in VARIANTS or not seed.removeprefix("seed").isdecimal():
        known = ", ".join(VARIANTS)
        raise SystemExit(f"--rerun is {name!r}; expected seconds, or VARIANT/seedN with a variant of {known}")
    number = int(seed.removeprefix("seed"))
    run = f"novels_{variant}_{seed}"
    folder = Path("runs") / run
    how.check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    training = folder / "cell.yaml"
    trained_by = folder / "commit.txt"
    played = configure_play(variant, number, run)
    parts = split_by_size(played)
    for part in parts:
        how.check_new(Path("studies") / part["name"])
        if number < FIRST_TUNING_SEED:
            check_stories(part)
    training.write_text(yaml.safe_dump(configure_training(variant)), encoding="utf-8")
    if not trained_by.exists():
        trained_by.write_text(name_commit(), encoding="utf-8")
    selfcest("train", "-c", str(training), "--resume", f"seeds=[{number}]", f"name={run}", "workers=1")

    with ThreadPoolExecutor(how.workers) as pool:
        results = list(chain.from_iterable(pool.map(play, parts)))
    sessions = read_sessions(folder)
    cell = {
        "experiment": "novels",
        "arm": variant,
        "seed": number,
        "config": digest(configure_training(variant)),
        "played": digest(parts),
        "version": __version__,
        "commit": trained_by.read_text(encoding="utf-8"),
        "gpus": sessions[-1]["gpus"],
        "gpu_seconds": sum_gpu_seconds(sessions),
        **describe_training(folder / variant / seed),
        "strategies": collect(results),
    }
    return [store_json(how.folder / f"{variant}_{seed}.json", cell)]


def configure_training(variant: str) -> dict[str, Any]:
    """Return the config that trains one variant."""
    config = read_config(TRAINED)
    spec = {key: value for key, value in config["variants"][variant].items() if key != "evaluated_on"}
    return {**config, "variants": {variant: spec}, "evaluation": {"eval_sets": []}}  # strategies play it instead


def configure_play(variant: str, seed: int, run: str) -> dict[str, Any]:
    """Return the config of the strategies that play with a variant's policy of this run."""
    config = read_config(PLAYED if seed < FIRST_TUNING_SEED else TUNED_ON)
    strategies = {}
    for label, spec in config["strategies"].items():
        policy = spec.get("policy", config["policy"])
        folder = policy if isinstance(policy, str) else policy["options"]["folder"]
        is_played = seed in (0, FIRST_TUNING_SEED) or label in EVERY_SEED
        if f"/{variant}/" in folder and is_played:
            strategies[label] = spec
    policy = f"runs/novels/{variant}/seed{{seed}}/model"
    eval_sets = [eval_set for eval_set in config["eval_sets"] if eval_set["size"] not in ONE_SEED or seed == 0]
    changes = {"name": run, "seeds": [seed], "policy": policy, "strategies": strategies, "eval_sets": eval_sets}
    text = yaml.safe_dump({**config, **changes}, sort_keys=False)
    moved: dict[str, Any] = yaml.safe_load(text.replace("runs/novels/", f"runs/{run}/"))
    # A policy with a model of its own is computed as the others are.
    trained = read_config(TRAINED)
    for spec in moved["strategies"].values():
        if isinstance(spec.get("policy"), dict):
            options = spec["policy"]["options"]
            options["model"]["options"] = {**trained["model"]["options"], **options["model"]["options"]}
            options["sampler"]["options"]["dtype"] = trained["sampler"]["options"]["dtype"]
    return moved


def split_by_size(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a config for each eval set, with the strategies that play it, so that sizes can be played side by side.

    Seconds that are measured side by side mean nothing.
    """
    configs = []
    for eval_set in config["eval_sets"]:
        family = eval_set["family"]
        strategies = {
            label: {key: value for key, value in spec.items() if key != "families"}
            for label, spec in config["strategies"].items()
            if family in spec.get("families", (family,))
        }
        if strategies:
            size = eval_set["size"]
            task = copy.deepcopy(config["tasks"][family])
            task["options"]["source"]["limit"] = STORIES[size]
            part = {
                "name": f"{config['name']}_{size}",
                "episodes": None,  # all stories
                "tasks": {family: task},
                "strategies": strategies,
                "eval_sets": [eval_set],
            }
            configs.append({**config, **part})
    return configs


def digest_stories(config: dict[str, Any]) -> str:
    """Return a digest of the stories of a config that `split_by_size` has returned, with their documents."""
    study = parse_study(config)
    (eval_set,) = study.eval_sets
    tasks = instances_of(study, eval_set, source_of(study, eval_set))
    return digest([[task.prompt, task.answer, dict(task.context)] for task in tasks])


def check_stories(config: dict[str, Any]) -> None:
    """End with one line if the stories are not those that were frozen before the first reported cell."""
    size = config["eval_sets"][0]["size"]
    found = digest_stories(config)
    if found != FROZEN_STORIES[size]:
        raise SystemExit(
            f"the stories of {size} tokens have the digest {found}; expected {FROZEN_STORIES[size]}: compare the books "
            "and bAbI's files with those that docs/novels.md names"
        )


def play(config: Mapping[str, Any]) -> list[Result]:
    """Play a config that `split_by_size` has returned."""
    name = config["name"]
    file = Path("runs") / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    selfcest("evaluate", "-c", str(file), "--resume", f"name={name}")
    return list(read_results(Path("studies") / name / "results.jsonl", whole=True))


def collect(results: Iterable[Result]) -> dict[str, Any]:
    """Return what each strategy reached at each size.

    `right` has one digit for each story, in one order for every strategy. Costs and scores of reports are means.
    """
    played: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        if result.place.style is None:
            played.setdefault(result.place.strategy, {}).setdefault(result.place.size, []).append(result)
    strategies: dict[str, Any] = {}
    for strategy, sizes in played.items():
        for size, found in sizes.items():
            found.sort(key=lambda result: result.place.task_id)
            figures: dict[str, Any] = {"right": "".join(str(int(result.grade.correct)) for result in found)}
            for cost in (*COSTS, "clones"):
                paid = [result.costs[cost] for result in found if result.costs is not None and cost in result.costs]
                if paid:
                    figures[cost] = float(f"{mean(paid):.6g}")
            reports = [result.reports for result in found if result.reports is not None]
            if reports:
                figures["report_exact"] = round(mean(overlap.exact for overlap in reports), 4)
                figures["report_f1"] = round(mean(overlap.f1 for overlap in reports), 4)
            strategies.setdefault(strategy, {})[size] = figures
    return strategies


def get_figures(cells: Iterable[Cell], strategy: str, size: str) -> dict[int, Mapping[str, Any]]:
    """Return the figures of a strategy at a size by seed; seeds that did not play it are left out."""
    found = {}
    for cell in cells:
        figures = cell["strategies"].get(strategy, {}).get(size)
        if figures is not None:
            found[cell["seed"]] = figures
    return dict(sorted(found.items()))


def get_accuracy(cells: Iterable[Cell], strategy: str, size: str) -> dict[int, float]:
    """Return the share of right answers by seed."""
    figures = get_figures(cells, strategy, size)
    return {seed: mean(int(digit) for digit in found["right"]) for seed, found in figures.items()}


def get_gaps(cells: Iterable[Cell], strategy: str, rival: str, size: str) -> dict[int, Values]:
    """Return, for each seed that played both, right answers of a strategy less those of a rival, [stories]."""
    right, rival_right = (
        {seed: np.array([*figures["right"]], dtype=float) for seed, figures in get_figures(cells, name, size).items()}
        for name in (strategy, rival)
    )
    return {seed: digits - rival_right[seed] for seed, digits in right.items() if seed in rival_right}


def estimate_gap(gaps: Mapping[int, Values]) -> Estimate:
    """Return the mean of `get_gaps` with an interval over stories.

    It speaks of these policies: a few seeds say too little of those that another training would bring.
    """
    by_story = np.mean([*gaps.values()], axis=0)[:, None]
    resampler = Resampler(len(by_story), 1, crossed=False, resamples=RESAMPLES, confidence=0.95)
    return with_equal_differences(resampler.estimate(by_story), by_story)


def list_strategies(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(strategy for cell in cells for strategy in cell["strategies"]))


# The page


def page(cells: Sequence[Cell], timed: Cell | None, tuning: Sequence[Cell]) -> str:
    """Return the text of `docs/novels_results.md`."""
    cells = sorted(cells, key=lambda cell: (VARIANTS.index(cell["arm"]), cell["seed"]))
    found = [_describe_rival(cells, *rival) for rival in RIVALS.items()]
    found += [SECONDS_FOUND.format(**seconds.describe_seconds(timed))] if timed else []
    parts = [HEAD, *found, *([evidence_line(cells, "`--rerun`")] if cells else []), _list_missing(cells, timed)]
    parts += [PREDICTED, _make_prediction_table(cells, timed)]
    if cells:
        parts += [
            ACCURACY.format(
                stories=", ".join(map(str, STORIES.values())),
                seen_4k=SIGN_TEST / STORIES["4k"],
                seen_16k=SIGN_TEST / STORIES["16k"],
            ),
            _make_accuracy_table(cells),
            COST,
            _make_cost_table(cells),
            PROVENANCE,
            _describe_compute(cells),
            _make_device_table(cells),
            provenance(cells),
        ]
    if timed:
        lengths = timed["lengths"]
        head = SECONDS.format(
            **{key: timed[key] for key in ("machine", "threads", "commit")},
            report=lengths["report"],
            answer=lengths["answer"],
        )
        parts += [head, seconds.make_crossing_table(timed), PLAYS, seconds.make_play_table(timed)]
        parts += [COSTS_OF_ONE, seconds.make_cost_table(timed)]
    runs = ", ".join(f"{sum(run['arm'] == arm for run in tuning)} runs of `{arm}`" for arm in VARIANTS[:2])
    return joined([*filter(None, parts), TUNING.format(runs=runs), tuning_table(tuning, "right at 4,000 tokens")])


def _list_missing(cells: Sequence[Cell], timed: Cell | None) -> str:
    stored = {(cell["arm"], cell["seed"]) for cell in cells}
    expected = [(variant, seed) for variant in VARIANTS[:2] for seed in read_config(PLAYED)["seeds"]]
    expected.append(("full_reader", 0))
    missing = [f"{variant}/seed{seed}" for variant, seed in expected if (variant, seed) not in stored]
    if timed is None:
        missing.append("seconds")
    return f"*Cells that have not been run yet: {', '.join(missing)}.*" if missing else ""


def _describe_rival(cells: Sequence[Cell], strategy: str, name: str) -> str:
    """Return a sentence that compares clones with a rival, or "" while no seed has both."""
    gaps, longer = (get_gaps(cells, "delegate", strategy, size) for size in ("4k", "16k"))
    if not gaps or not longer:
        return ""
    gap = estimate_gap(gaps)
    verdict = "cannot be told apart from"
    if gap.low > 0 or gap.high < 0:
        verdict = f"are right {'more' if gap.low > 0 else 'less'} often than"
    clones, rivals = (get_figures(cells, label, "16k") for label in ("delegate", strategy))
    ratios = {
        cost: mean(clones[seed][cost] for seed in longer) / mean(rivals[seed][cost] for seed in longer)
        for cost in ("flops", "critical_path_tokens")
    }
    found = RIVAL_FOUND.format(
        verdict=verdict,
        name=name,
        gap=gap.signed,
        seeds=each(float(of_seed.mean()) for of_seed in gaps.values()),
        longer=estimate_gap(longer).signed,
        **ratios,
    )
    if not strategy.startswith("bm25_sentences"):
        return found
    found = f"{found} {SHORT}"
    # What a search finds is given to one clone, so a root that does not call loses whatever is found.
    calls = [figures["clones"] for figures in get_figures(cells, strategy, "4k").values() if "clones" in figures]
    if calls and mean(calls) < LEAST_CALLS:
        found = f"{found} {NO_CALL.format(calls=mean(calls))}"
    return found


def _describe_compute(cells: Sequence[Cell]) -> str:
    """Return a sentence on the compute of training of the rivals, as multiples of the clones'; "" without one."""
    used = {arm: [cell["compute_tokens"] for cell in cells if cell["arm"] == arm] for arm in VARIANTS}
    rivals = [
        f"{mean(used[arm]) / mean(used['delegating']):.2f} for `{arm}`"
        for arm in VARIANTS[1:]
        if used[arm] and used["delegating"]
    ]
    return f"Training computed, in multiples of `delegating`, {' and '.join(rivals)}." if rivals else ""


def _make_device_table(cells: Sequence[Cell]) -> str:
    lines = []
    for cell in cells:
        seconds = cell["gpu_seconds"]
        line = [f"{cell['arm']}/seed{cell['seed']}", ", ".join(cell["gpus"]) or "CPU"]
        lines.append([*line, f"{seconds:.0f}" if cell["gpus"] and seconds is not None else "-"])
    return table(["cell", "trained on", "GPU-seconds, with loading"], lines)


def _make_accuracy_table(cells: Sequence[Cell]) -> str:
    lines = []
    for strategy in list_strategies(cells):
        line = [f"`{strategy}`"]
        line += [each(get_accuracy(cells, strategy, size).values()) or "–" for size in SIZES]
        for score in ("report_exact", "report_f1"):
            scores = [
                mean(figures[score] for figures in found.values() if score in figures)
                for found in [get_figures(cells, strategy, size) for size in SIZES]
                if any(score in figures for figures in found.values())
            ]
            line.append(each(scores) or "–")
        lines.append(line)
    return table(["strategy", *SIZES, "reports exact", "reports' F1"], lines)


def _make_cost_table(cells: Sequence[Cell]) -> str:
    lines = []
    for strategy in list_strategies(cells):
        for size in SIZES:
            found = list(get_figures(cells, strategy, size).values())
            if not found:
                continue
            costs = {cost: mean(figures[cost] for figures in found) for cost in COSTS}
            line = [f"`{strategy}`", size, f"{costs['total_tokens']:,.0f}", f"{costs['critical_path_tokens']:,.0f}"]
            line += [f"{costs['flops'] / 1e12:.2f}", f"{costs['ideal_memory'] / 1e9:.2f}"]
            lines.append(line)
    return table(["strategy", "size", "total tokens", "critical path", "TFLOP", "ideal memory, GB"], lines)


Judged = Callable[[Sequence[Cell]], Sequence[float] | None]
"""From all cells to a margin for each comparison; a prediction holds if none is below 0. `None`: a cell is missing."""


def _compare(strategy: str, rival: str, size: str, by: float = 0.0) -> Judged:
    def judge(cells: Sequence[Cell]) -> list[float] | None:
        return [float(gap.mean()) - by for gap in get_gaps(cells, strategy, rival, size).values()] or None

    return judge


def _bound(strategy: str, size: str, *, low: float = 0.0, high: float = 1.0) -> Judged:
    def judge(cells: Sequence[Cell]) -> list[float] | None:
        found = get_accuracy(cells, strategy, size).values()
        return [min(value - low, high - value) for value in found] or None

    return judge


def _loses_at_most(strategy: str, loss: float, first: str, last: str) -> Judged:
    def judge(cells: Sequence[Cell]) -> list[float] | None:
        short, long = (get_accuracy(cells, strategy, size) for size in (first, last))
        return [long[seed] - short[seed] + loss for seed in short.keys() & long.keys()] or None

    return judge


def _share_of_path(strategy: str, rival: str, size: str, share: float) -> Judged:
    def judge(cells: Sequence[Cell]) -> list[float] | None:
        own, other = (get_figures(cells, name, size) for name in (strategy, rival))
        path = "critical_path_tokens"
        return [share - own[seed][path] / other[seed][path] for seed in own.keys() & other.keys()] or None

    return judge


# Stated before the first reported story was played. seconds.py has those of seconds.
PREDICTIONS: Mapping[str, Judged] = {
    "clones are right on .6 or more (4k)": _bound("delegate", "4k", low=0.6),
    "clones with the relevant parts are right on .8 or more (4k)": _bound("oracle_documents", "4k", low=0.8),
    "the memory is at most .05 below the clones (4k)": _compare("memory_agent", "delegate", "4k", by=-0.05),
    "it is at most .25 below them (32k)": _compare("memory_agent", "delegate", "32k", by=-0.25),
    "clones lose at most .25 from 4k to 32k": _loses_at_most("delegate", 0.25, "4k", "32k"),
    "a search for sentences is not below the clones (16k)": _compare("bm25_sentences_one_hop", "delegate", "16k"),
    "clones generate at most half of the memory's tokens in series (16k)": _share_of_path(
        "delegate", "memory_agent", "16k", 0.5
    ),
    "the full reader is right on .5 or less (4k)": _bound("full_reader", "4k", high=0.5),
    "with a scaled window it is right on .4 or less (chance: .17) (16k)": _bound(
        "full_reader_scaled_not_fine_tuned", "16k", high=0.4
    ),
}


def _make_prediction_table(cells: Sequence[Cell], timed: Cell | None) -> str:
    lines = []
    for text, judge in PREDICTIONS.items():
        margins = judge(cells)
        if margins is None:
            lines.append([text, "not run yet", ""])
        else:
            lines.append([text, each(margins), "held" if min(margins) >= 0 else "**failed**"])
    lines += seconds.make_prediction_lines(timed)
    return table(["predicted", "margin, every seed", ""], lines)


def draw(cells: Sequence[Cell], file: Path) -> None:
    """Draw accuracy against the length of the text: a line for each seed of a strategy.

    Sizes with fewer than 8 stories are left out.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axis = figure.subplots()
    sizes = [size for size in SIZES if STORIES[size] >= 8]
    thousands = [int(size.removesuffix("k")) for size in sizes]
    labels = {"delegate": "clones", "memory_agent": "memory", "bm25_sentences_one_hop": "BM25, sentences"}
    for index, (strategy, label) in enumerate(labels.items()):
        accuracy = [get_accuracy(cells, strategy, size) for size in sizes]
        for number, seed in enumerate(accuracy[0]):
            curve = [values.get(seed, math.nan) for values in accuracy]
            colour = SERIES[index].light
            axis.plot(thousands, curve, color=colour, marker="o", linewidth=1.6, label=label if number == 0 else None)
    axis.set_xscale("log", base=2)
    axis.set_xticks(thousands, [f"{number},000" for number in thousands])
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("tokens of the text", color=INK.light)
    axis.set_ylabel("right answers", color=INK.light)
    style_axis(axis, "Questions about one fact in a novel that no training had")
    axis.legend(frameon=False, fontsize=9)
    figure.savefig(file, dpi=200)


HEAD = """# Facts in a novel: results

For readers who ask whether delegation works with a real model on text that is longer than it can read.
SmolLM2-135M answers questions of bAbI in *Emma*, a novel of no training. It learns by imitation only, in contexts
of at most 2,560 tokens. [Facts in a novel](novels.md) says what the strategies are.

`python -m studies novels` prints this page from `studies/novels/evidence`, and `--rerun delegating/seed0` trains and
plays one cell on a CPU. The questions need **one fact** (task 1), the last sentence with the
person's name. On task 2, which needs two, no policy of the log below passed the gate, .6 right at 4,000 tokens."""

RIVAL_FOUND = """**Clones {verdict} {name}** at 4,000 tokens: the difference in right answers is {gap} (95 % over
stories, for these policies), by seed {seeds}, and {longer} at 16,000. There they compute {flops:.2f} of its FLOPs, and
generate {critical_path_tokens:.2f} of its tokens in series."""

SHORT = """**It says nothing of search**: the sentences that are found have some 16 words, and clones were trained on
parts of 500 tokens. A program that takes the last of them is right on every story."""

NO_CALL = "And the root called {calls:.2f} clones a story instead of one."

SECONDS_FOUND = """**Seconds on a CPU**: delegation beats the full reader from {measured_1} tokens on, and from
{measured_16} with 16 texts at once; a calibration of ten minutes predicted {predicted_1} and {predicted_16}. Against
the memory it takes {memory_1} of the seconds for one text of 16,384 tokens, and {memory_16} for 16 texts of 2,048."""

PREDICTED = """## Predictions

Each is of every seed."""

ACCURACY = """## Accuracy

Right answers for each seed, on {stories} stories by size. Of one seed, differences under
{seen_4k:.2f} at 4,000 tokens and {seen_16k:.2f} at 16,000 cannot be seen. Reports, of clones and of memories after
each part: the share that is exactly the expert's, and their mean F1, by size.

![Accuracy by length](novels.png)"""

COST = """## Costs

Means over stories and seeds, counted by the ledger and computed from the model's dimensions
([Costs](evaluation.md#costs))."""

PROVENANCE = """## Cells

A first run of `delegating/seed0` was lost with its machine. It was right on .79 at 4,000 tokens and .62 at 16,000. It
showed a fault: where a search or the oracle leaves one part, 36 of 48 roots call for `["part 1"]`, which the prompt
format refused. Since commit `12a3c8c` it means this part. No root that has all parts writes so. Configurations and
predictions are as frozen, and all cells of clones are played with this format, version 1 of the searches and version 2
of the memory."""

SECONDS = """## Seconds

On an idle machine ({machine}, {threads} threads, float32, commit `{commit:.7}`), with random ids: reports of {report}
tokens, answers of {answer}, one call and one reading, no cache. From this length on, delegation costs at most what the
full reader costs:"""

PLAYS = "Seconds of all texts, measured (predicted):"

COSTS_OF_ONE = "FLOPs of one text, and ideal memory if all clones run at once:"

TUNING = """## Tuning

On the official training stories in *Persuasion*, of task 2 unless a row says task 1. {runs}. **Before seed 111 runs of
`delegating` learned from `long` alone**, by a fault, except for 108 to 110."""


def stored() -> tuple[list[Cell], Cell | None, list[Cell]]:
    """Return the reported cells, that of seconds, and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), seconds.read_cell(EVIDENCE), tuning


STUDY = Study(
    page_file=DOCS / "novels_results.md",
    page=lambda: page(*stored()),
    figures={DOCS / "novels.png": lambda file: draw(cells_in(EVIDENCE), file)} if cells_in(EVIDENCE) else {},
    rerun=rerun,
    cells="VARIANT/seedN, such as delegating/seed0; seconds on an idle machine",
)
