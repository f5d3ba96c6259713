"""The page on when to stop asking: a search whose optimal rule is known, learned from the value of one more clone.

The page is a function of the stored cells. `--rerun stopping/seed0` trains and plays one seed of all variants again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from selfcest_eval.play.results import Result
from selfcest_eval.report.training_run import EvaluatedPolicy
from selfcest_eval.stats.statistics import over_seeds
from selfcest_training.config import RunConfig
from selfcest_training.config_file import read_config
from selfcest_training.run.evaluator import EvaluationStage
from studies.runner import (
    DOCS,
    LINE_WIDTH,
    Cell,
    Rerun,
    Study,
    cells_in,
    each,
    evidence_line,
    joined,
    of,
    provenance,
    read_json,
    shown,
    table,
    tuning_table,
)
from studies.stopping.episodes import PRICE_UNIT, describe, make_search
from studies.stopping.rules import START, OfferSearch, Rule, ask, ask_until, find_best_number, find_best_threshold
from studies.trained import EXPERIMENTS, STOPPING, list_missing, rerun

EVIDENCE = Path(__file__).parent / "evidence"
EVAL_SETS = {"seen": "prices of training", "new_prices": "new prices"}
VARIANTS = ("branches", "rloo")
NUMBER_BY_PRICE = "best fixed number for each price"
THRESHOLD = "best threshold for all prices"
# The episodes of a group have the same documents, so `rloo` compares numbers of clones on the same offers as well.
CLOSE = 0.01  # of stop regret
MARGIN = 0.02  # likewise

Figures = Mapping[str, Mapping[str, float]]
"""The figures of an eval set by price."""


def stored() -> tuple[list[Cell], list[Cell]]:
    """Return the reported cells and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), tuning


def measure(config: RunConfig, variant: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures of a variant before and after RL, by eval set and price."""
    figures: dict[str, dict[str, Any]] = {}
    for name, stage in (("before", EvaluationStage.BEFORE), ("after", EvaluationStage.AFTER)):
        label = EvaluatedPolicy(variant, stage, config.evaluation.temperatures[0]).label(config)
        played = [result for result in results if result.place.strategy == label and result.place.style is None]
        figures[name] = {}
        for eval_set in EVAL_SETS:
            records = [result.episodes[result.chosen] for result in played if result.place.size == eval_set]
            figures[name][eval_set] = describe(records)
    return {"stopping": figures}


def read_prices() -> dict[str, list[int]]:
    """Return the stated prices of each eval set."""
    config = read_config(EXPERIMENTS["stopping"])
    prices = {"seen": config["tasks"]["offers"]["options"]["prices"]}
    for eval_set in config["evaluation"]["eval_sets"]:
        if "options" in eval_set:
            prices[eval_set["size"]] = eval_set["options"]["prices"]
    return prices


def make_searches(prices: Iterable[int]) -> list[OfferSearch]:
    return [make_search(price) for price in prices]


def compute_rival_regrets(eval_set: str) -> dict[str, float]:
    """Compute the exact stop regret of each rival over the equally likely prices of an eval set.

    A rule for all prices is the best one for those of training.
    """
    prices = read_prices()
    trained_on = make_searches(prices["seen"])
    number = find_best_number(trained_on)
    threshold = find_best_threshold(trained_on)
    rules: dict[str, Callable[[OfferSearch], Rule]] = {
        "best fixed number": lambda search: ask(number),
        NUMBER_BY_PRICE: lambda search: ask(find_best_number([search])),
        THRESHOLD: lambda search: ask_until(threshold),
    }
    searches = make_searches(prices[eval_set])
    return {rival: mean(search.regret_of(make(search)) for search in searches) for rival, make in rules.items()}


def get_figures(cell: Cell, eval_set: str, stage: str = "after") -> Figures:
    figures: Figures = cell["stopping"][stage][eval_set]
    return figures


def get_mean(figures: Figures, name: str) -> float:
    """Return the mean of a figure over prices, each with the same weight as for the rivals."""
    return mean(values[name] for values in figures.values())


def get_agreement(figures: Figures) -> float:
    """Return the share of the choices that are those of the optimal rule, among those that matter; nan without any."""
    choices = sum(values["choices"] for values in figures.values())
    return sum(values["agreed"] for values in figures.values()) / choices if choices else math.nan


def get_regrets(cells: Sequence[Cell], eval_set: str, stage: str = "after") -> list[float]:
    return [get_mean(get_figures(cell, eval_set, stage), "regret") for cell in cells]


def page(cells: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """Return the text of `docs/stopping.md`."""
    by_variant = of(cells, *STOPPING)
    parts = [HEAD, *([evidence_line(cells, "`--rerun`")] if cells else []), list_missing(cells, STOPPING)]
    parts += [RULES, _make_rule_table(), PREDICTED, _make_prediction_table(by_variant)]
    if "branches" in by_variant:
        parts.insert(1, _write_headline(by_variant["branches"]))
    if cells:
        parts += [REGRET, _make_regret_table(by_variant), _make_execution_table(by_variant)]
        parts += [PRICES, *(_make_price_table(by_variant, eval_set) for eval_set in EVAL_SETS)]
        parts += [PROVENANCE, provenance(cells)]
    return joined([*filter(None, parts), TUNING, tuning_table(tuning)])


def _write_headline(cells: Sequence[Cell]) -> str:
    """Return how the root stands against simple rules, and how many clones it calls at the lowest price."""
    regrets = get_regrets(cells, "seen")
    rivals_by_verdict: dict[str, list[str]] = {}
    for rival, regret in compute_rival_regrets("seen").items():
        if all(own < regret for own in regrets):
            verdict = "better with every seed than"
        elif all(own > regret for own in regrets):
            verdict = "worse with every seed than"
        else:
            verdict = "better on average than" if mean(regrets) < regret else "worse on average than"
        rivals_by_verdict.setdefault(verdict, []).append(f"the {rival} ({regret:.3f})")
    compared = [f"{verdict} {' and '.join(rivals)}" for verdict, rivals in rivals_by_verdict.items()]
    lowest = min(read_prices()["seen"])
    clones = mean(get_figures(cell, "seen")[str(lowest)]["clones"] for cell in cells)
    optimal = make_search(lowest)
    text = (
        f"**The root stops {', and '.join(compared)}.** Over {len(cells)} seeds its stop regret is "
        f"{mean(regrets):.3f}, and {mean(get_regrets(cells, 'new_prices')):.3f} at new prices. At the lowest price it "
        f"calls {clones:.2f} clones, and the optimal rule {optimal.mean_number_of(optimal.goes_on):.2f}."
    )
    return fill(text, LINE_WIDTH)


def _make_rule_table() -> str:
    prices = read_prices()["seen"]
    searches = make_searches(prices)
    best_threshold = find_best_threshold(searches)
    lines = []
    for price, search in zip(prices, searches, strict=True):
        number = find_best_number([search])
        line = [f"{price:02d}", f"{search.price:.3f}", str(search.threshold), f"{search.optimal_value(START):.3f}"]
        line.append(f"{search.mean_number_of(search.goes_on):.2f}")
        line.append(f"{number}: {search.regret_of(ask(number)):.3f}")
        line.append(f"{search.regret_of(ask_until(best_threshold)):.3f}")
        lines.append(line)
    heads = ["stated", "price", "optimal: stops from", "its reward", "its clones", NUMBER_BY_PRICE]
    heads.append(f"{THRESHOLD}: {best_threshold}")
    return f"{table(heads, lines)}\n\nOver all these prices the best fixed number is {find_best_number(searches)}."


def _make_regret_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    for eval_set, words in EVAL_SETS.items():
        first = next(iter(by_variant.values()))
        before = get_regrets(first, eval_set, "before")
        lines.append([words, "warm start", each(before, 3), shown(over_seeds(before), 3), ""])
        for variant, cells in by_variant.items():
            regrets = get_regrets(cells, eval_set)
            agreement = over_seeds([get_agreement(get_figures(cell, eval_set)) for cell in cells])
            lines.append([words, f"`{variant}`", each(regrets, 3), shown(over_seeds(regrets), 3), shown(agreement)])
        for rival, regret in compute_rival_regrets(eval_set).items():
            lines.append([words, rival, "", f"{regret:.3f}", ""])
    return table(["instances", "rule", "stop regret, every seed", "mean", "agreement"], lines)


def _make_execution_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    for variant, cells in by_variant.items():
        figures = [get_figures(cell, "seen") for cell in cells]
        lines.append(
            [
                f"`{variant}`",
                *(shown(over_seeds([get_mean(one, name) for one in figures]), 3) for name in ("reward", "best")),
            ]
        )
    return table(["prices of training", "reward", "answers that are the best offer"], lines)


def _make_price_table(by_variant: Mapping[str, Sequence[Cell]], eval_set: str) -> str:
    lines = []
    for price in read_prices()[eval_set]:
        search = make_search(price)
        line = [f"{price:02d}", f"{search.mean_number_of(search.goes_on):.2f}"]
        for cells in by_variant.values():
            figures = [get_figures(cell, eval_set)[str(price)] for cell in cells]
            clones = mean(values["clones"] for values in figures)
            line.append(f"{clones:.2f} ({mean(values['regret'] for values in figures):.3f})")
        lines.append(line)
    return table([f"{EVAL_SETS[eval_set]}: price", "optimal rule", *(f"`{name}`" for name in by_variant)], lines)


def _make_prediction_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    cells = by_variant.get("branches", [])
    lines = []
    for eval_set, words in EVAL_SETS.items():
        regrets = get_regrets(cells, eval_set)
        rivals = compute_rival_regrets(eval_set)
        for rival in ("best fixed number", NUMBER_BY_PRICE):
            gains = [rivals[rival] - regret for regret in regrets]
            text = f"{words}: every regret of `branches` below that of: {rival} ({rivals[rival]:.3f})"
            lines.append([text, *_judge(gains, holds=min(gains, default=0.0) > 0)])
        # In tuning it was not below the best threshold.
        gaps = [regret - rivals[THRESHOLD] for regret in regrets]
        text = (
            f"{words}: mean regret of `branches` at most {MARGIN} above that of: {THRESHOLD} ({rivals[THRESHOLD]:.3f})"
        )
        lines.append([text, *_judge(gaps, holds=mean(gaps or [0.0]) <= MARGIN)])
    regret_by_seed = {}
    for variant in ("branches", "rloo"):
        found = by_variant.get(variant, [])
        seeds = [cell["seed"] for cell in found]
        regret_by_seed[variant] = dict(zip(seeds, get_regrets(found, "seen"), strict=True))
    own = regret_by_seed["branches"]
    other = regret_by_seed["rloo"]
    differences = [other[seed] - own[seed] for seed in sorted(own.keys() & other.keys())]
    text = f"{EVAL_SETS['seen']}: mean regret of `branches` within {CLOSE} of that of `rloo` at equal sampled tokens"
    lines.append([text, *_judge(differences, holds=abs(mean(differences or [0.0])) < CLOSE)])
    return table(["predicted", "difference, every seed", ""], lines)


def _judge(gains: Sequence[float], *, holds: bool) -> list[str]:
    if not gains:
        return ["not run yet", ""]
    return [each(gains, 3), "held" if holds else "**failed**"]


HEAD = f"""# When to stop asking

For readers who ask whether a root can learn to stop calling clones when one more is not worth its price. The model is
the embedded one (0.17 M parameters), the task a search with recall
([Weitzman 1979](https://doi.org/10.2307/1910412)): best-of-n where each sample has a price.

Six documents offer a digit for each field, all digits equally likely, and an offer is worth its digit in tenths. The
prompt `?k;25` asks for an offer for field `k`, and a clone costs 25 times {PRICE_UNIT}. A clone reads one document and
replies with its offer. After every reply the root writes the key and offer of this document, those of the best one, and
the price: `B3A5;25`. Then it calls the next clone, or answers with the best key. A document that no clone read is worth
nothing. The warm start stops after each reply with probability 0.5.

`branches` with `root_share: 1` draws each later turn of the root once more from the same context. If one draw calls a
clone and the other one answers, their returns differ by the value of one more clone, *given these offers* and the
policy's later choices. `rloo` has no replays, and as many sampled tokens; its options were tuned for `branches`.

`python -m studies stopping` prints this page from `studies/stopping/evidence`, and `--rerun stopping/seed0` trains one
seed of all variants. The configuration was tuned on seeds from 100 on. It and the predictions were committed before the
first reported seed, and every reported seed was run once."""

RULES = """## The optimal rule and simple rules

Exact values by dynamic programming. The optimal rule looks one step ahead: it stops as soon as one more clone costs
more than it gains on average. *Stop regret* is the optimal rule's reward minus that of another rule; the last two
columns have it."""

PREDICTED = "## Predictions"

REGRET = """## Stop regret

Each turn is judged against the optimal rule from then on, given the documents that clones got. The sum over an episode
is the regret without the luck of the draw. Policies play greedily, which makes the choices of the warm start arbitrary.
*Agreement* is the share of optimal choices, among those that matter by 0.005 or more. ± is a 95 % interval over seeds
(Student's t)."""

PRICES = "## By price\n\nMean number of clones, and in brackets the stop regret."

PROVENANCE = "## Cells\n\nThe warm start of a seed counts in each of its variants."

TUNING = """## Tuning

The first version had another task, a vote of noisy witnesses. Two replies decided no better than one, so one clone was
a local optimum of RL. Here a root that stops too early gains by each clone that the optimal rule calls. Each option was
tried with one seed, so the choice among them includes the luck of seeds. `grpo` was left out to save time."""


def rerun_cell(name: str, how: Rerun) -> list[Path]:
    return rerun(name, how, measure)


STUDY = Study(
    page_file=DOCS / "stopping.md",
    page=lambda: page(*stored()),
    rerun=rerun_cell,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
