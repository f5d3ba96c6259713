"""The page on when to stop asking: a sequential test whose optimal rule is known, learned from the value of one more.

The page is a function of the stored cells. `--rerun stopping/seed0` trains and plays one seed of all variants again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from selfcest_eval.play.results import Result
from selfcest_eval.report.training_run import EvaluatedPolicy
from selfcest_eval.stats.statistics import over_seeds
from selfcest_training.config import RunConfig
from selfcest_training.config_file import read_config
from selfcest_training.run.evaluator import EvaluationStage
from studies.runner import (
    DOCS,
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
from studies.stopping.episodes import describe, make_test
from studies.stopping.rules import Rule, SequentialTest, ask, ask_until_agreed, find_best_agreement, find_best_number
from studies.trained import EXPERIMENTS, STOPPING, list_missing, rerun

EVIDENCE = Path(__file__).parent / "evidence"
EVAL_SETS = {"seen": "prices of training", "new_prices": "new prices"}
VARIANTS = ("branches", "rloo", "grpo")
FIXED = "best fixed number"
FIXED_BY_PRICE = "best fixed number for each price"
TWO_AGREE = "until two agree"
AGREED_BY_PRICE = "best number that agree for each price"
RIVALS = (FIXED, FIXED_BY_PRICE, TWO_AGREE, AGREED_BY_PRICE)

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
    """Return the prices of each eval set, in thousandths."""
    config = read_config(EXPERIMENTS["stopping"])
    prices = {"seen": config["tasks"]["witnesses"]["options"]["prices"]}
    for eval_set in config["evaluation"]["eval_sets"]:
        if "options" in eval_set:
            prices[eval_set["size"]] = eval_set["options"]["prices"]
    return prices


def compute_rival_regret(rival: str, tests: Sequence[SequentialTest], trained_on: Sequence[SequentialTest]) -> float:
    """Compute the exact stop regret of a rival over equally likely prices.

    Args:
        rival: one of `RIVALS`.
        tests: the decision problem of each price.
        trained_on: those of the prices of training, for which the best fixed number is chosen.
    """
    number = find_best_number(trained_on)
    make_rule: Callable[[SequentialTest], Rule] = {
        FIXED: lambda test: ask(number),
        FIXED_BY_PRICE: lambda test: ask(find_best_number([test])),
        TWO_AGREE: lambda test: ask_until_agreed(2),
        AGREED_BY_PRICE: lambda test: ask_until_agreed(find_best_agreement(test)),
    }[rival]
    return mean(test.regret_of(make_rule(test)) for test in tests)


def get_figures(cell: Cell, eval_set: str, stage: str = "after") -> Figures:
    figures: Figures = cell["stopping"][stage][eval_set]
    return figures


def get_mean(figures: Figures, name: str) -> float:
    """Return the mean of a figure over prices, each with the same weight as for the rivals."""
    return mean(values[name] for values in figures.values())


def get_agreement(figures: Figures) -> float:
    """Return the share of the choices that are those of the optimal rule, among those that matter."""
    return sum(values["agreed"] for values in figures.values()) / sum(values["choices"] for values in figures.values())


def get_regrets(cells: Sequence[Cell], eval_set: str, stage: str = "after") -> list[float]:
    return [get_mean(get_figures(cell, eval_set, stage), "regret") for cell in cells]


def page(cells: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """Return the text of `docs/stopping.md`."""
    by_variant = of(cells, *STOPPING)
    parts = [HEAD, *([evidence_line(cells, "`--rerun`")] if cells else []), list_missing(cells, STOPPING)]
    parts += [RULES, _make_rule_table(), PREDICTED, _make_prediction_table(by_variant)]
    if cells:
        parts += [REGRET, _make_regret_table(by_variant), _make_execution_table(by_variant)]
        parts += [PRICES, *(_make_price_table(by_variant, eval_set) for eval_set in EVAL_SETS)]
        parts += [PROVENANCE, provenance(cells)]
    return joined([*filter(None, parts), TUNING, tuning_table(tuning)])


def _make_rule_table() -> str:
    prices = read_prices()["seen"]
    lines = []
    for price in prices:
        test = make_test(price)
        number = find_best_number([test])
        agreement = find_best_agreement(test)
        line = [f"{price / 1000:.3f}", f"{test.optimal_value(test.start):.3f}"]
        line.append(f"{test.mean_number_of(test.goes_on):.2f}")
        line.append(f"{number}: {test.regret_of(ask(number)):.3f}")
        line.append(f"{test.regret_of(ask_until_agreed(2)):.3f}")
        line.append(f"{agreement}: {test.regret_of(ask_until_agreed(agreement)):.3f}")
        lines.append(line)
    heads = ["price", "reward of the optimal rule", "its witnesses", FIXED_BY_PRICE, TWO_AGREE, AGREED_BY_PRICE]
    number = find_best_number([make_test(price) for price in prices])
    return f"{table(heads, lines)}\n\nOver all these prices the best fixed number is {number}."


def _make_regret_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    prices = read_prices()
    trained_on = [make_test(price) for price in prices["seen"]]
    for eval_set, words in EVAL_SETS.items():
        first = next(iter(by_variant.values()))
        before = get_regrets(first, eval_set, "before")
        lines.append([words, "warm start", each(before, 3), shown(over_seeds(before), 3), ""])
        for variant, cells in by_variant.items():
            regrets = get_regrets(cells, eval_set)
            agreement = over_seeds([get_agreement(get_figures(cell, eval_set)) for cell in cells])
            lines.append([words, f"`{variant}`", each(regrets, 3), shown(over_seeds(regrets), 3), shown(agreement)])
        tests = [make_test(price) for price in prices[eval_set]]
        for rival in RIVALS:
            lines.append([words, rival, "", f"{compute_rival_regret(rival, tests, trained_on):.3f}", ""])
    return table(["instances", "rule", "stop regret, every seed", "mean", "agreement"], lines)


def _make_execution_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    lines = []
    for variant, cells in by_variant.items():
        figures = [get_figures(cell, "seen") for cell in cells]
        lines.append(
            [
                f"`{variant}`",
                *(shown(over_seeds([get_mean(one, name) for one in figures]), 3) for name in ("reward", "plurality")),
            ]
        )
    return table(["prices of training", "reward", "answers that are the plurality"], lines)


def _make_price_table(by_variant: Mapping[str, Sequence[Cell]], eval_set: str) -> str:
    lines = []
    for price in read_prices()[eval_set]:
        test = make_test(price)
        line = [f"{price / 1000:.3f}", f"{test.mean_number_of(test.goes_on):.2f}"]
        for cells in by_variant.values():
            figures = [get_figures(cell, eval_set)[str(price)] for cell in cells]
            clones = mean(values["clones"] for values in figures)
            line.append(f"{clones:.2f} ({mean(values['regret'] for values in figures):.3f})")
        lines.append(line)
    return table([f"{EVAL_SETS[eval_set]}: price", "optimal rule", *(f"`{name}`" for name in by_variant)], lines)


def _make_prediction_table(by_variant: Mapping[str, Sequence[Cell]]) -> str:
    prices = read_prices()
    trained_on = [make_test(price) for price in prices["seen"]]
    cells = by_variant.get("branches", [])
    lines = []
    for eval_set, words in EVAL_SETS.items():
        tests = [make_test(price) for price in prices[eval_set]]
        for rival in (FIXED, FIXED_BY_PRICE, TWO_AGREE):
            bound = compute_rival_regret(rival, tests, trained_on)
            gains = [bound - regret for regret in get_regrets(cells, eval_set)]
            text = f"{words}: every regret of `branches` below that of: {rival} ({bound:.3f})"
            lines.append([text, *_judge(gains, holds=min(gains, default=0.0) > 0)])
    regret_by_seed = {}
    for variant in ("branches", "rloo"):
        found = by_variant.get(variant, [])
        seeds = [cell["seed"] for cell in found]
        regret_by_seed[variant] = dict(zip(seeds, get_regrets(found, "seen"), strict=True))
    own = regret_by_seed["branches"]
    other = regret_by_seed["rloo"]
    differences = [other[seed] - own[seed] for seed in sorted(own.keys() & other.keys())]
    text = f"{EVAL_SETS['seen']}: mean regret of `branches` below that of `rloo` at equal sampled tokens"
    lines.append([text, *_judge(differences, holds=mean(differences or [0.0]) > 0)])
    return table(["predicted", "difference, every seed", ""], lines)


def _judge(gains: Sequence[float], *, holds: bool) -> list[str]:
    if not gains:
        return ["not run yet", ""]
    return [each(gains, 3), "held" if holds else "**failed**"]


HEAD = """# When to stop asking

For readers who ask whether a root can learn to stop calling clones when one more is not worth its price. The model is
the embedded one (0.17 M parameters), the task a sequential test in the sense of Wald.

Seven documents are noisy copies of one list of digits from 0 to 3; a digit is right with probability 0.7. The prompt
`?k;25` asks for the true digit of field `k`, and a clone costs 25 thousandths of a right answer. A clone reads one
document. After every reply the root writes all replies, grouped by digit, the price and the sizes of the two largest
groups: `3302;25;21`. Then it calls the next clone or answers with the plurality. The warm start stops at random.

`branches` with `root_share: 1` draws each later turn of the root once more from the same context. If one draw calls a
clone and the other one answers, their returns differ by the value of one more clone, *given these documents* and the
policy's later choices. `rloo` and `grpo` have no replays, and as many sampled tokens.

`python -m studies stopping` prints this page from `studies/stopping/evidence`, and `--rerun stopping/seed0` trains one
seed of all variants. **No result yet**: the configuration is being tuned, on seeds from 100 on. Configuration and
predictions are then frozen, and every reported seed is run once."""

RULES = """## The optimal rule and simple rules

Exact values by dynamic programming. *Stop regret* is the optimal rule's reward minus that of another rule; the last
three columns have it, after the number that is chosen by price."""

PREDICTED = "## Predictions"

REGRET = """## Stop regret

Each turn is judged against the optimal rule from then on, given the documents that were asked. The sum over an episode
is the regret without the luck of the draw. *Agreement* is the share of optimal choices, among those that matter by
0.005 or more. ± is a 95 % interval over seeds (Student's t)."""

PRICES = "## By price\n\nMean number of clones, and in brackets the stop regret."

PROVENANCE = "## Cells\n\nThe warm start of a seed counts in each of its variants."

TUNING = """## Tuning

Two replies decide no better than one: a tie keeps the first digit. So one more witness is worth nothing if the root
stops after it, and one witness is a local optimum of RL."""


def rerun_cell(name: str, how: Rerun) -> list[Path]:
    return rerun(name, how, measure)


STUDY = Study(
    page_file=DOCS / "stopping.md",
    page=lambda: page(*stored()),
    rerun=rerun_cell,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
