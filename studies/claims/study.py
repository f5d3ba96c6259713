"""The page of claims: what was found, and for each claim its command, CPU time, seeds and strongest rival.

All figures are computed from the stored cells of other studies, whose pages have every seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median

from selfcest_eval.stats.statistics import over_seeds, sign_test
from studies import trained
from studies.cells import study as cells
from studies.credit_map import study as credit_map
from studies.methods import study as methods
from studies.runner import DOCS, Cell, Study, cells_in, each, joined, of, shown, table
from studies.when import study as when
from studies.where import study as where

LARGEST = "8x20"  # 160 named entries, more than four times as many as in training


@dataclass(frozen=True)
class Claim:
    """A claim with its evidence.

    Attributes:
        text: what is claimed, with figures of `evidence`.
        page: name of the page in docs/ that has every seed.
        command: makes one cell of the evidence again.
        evidence: the cells, with `seed` and `cpu_seconds`.
        rival: the strongest rival that was tried, and what it came to.
    """

    text: str
    page: str
    command: str
    evidence: Sequence[Cell]
    rival: str


def make_claims() -> list[Claim]:
    """Return the claims whose cells are stored."""
    makers: Sequence[Callable[[], Claim | None]] = (
        _claim_length,
        _claim_costs,
        _claim_decision,
        _claim_counterfactual_credit,
        _claim_credit_by_part,
        _claim_learning_signals,
    )
    return [claim for make in makers if (claim := make()) is not None]


def _claim_length() -> Claim | None:
    variants = where.group_by_variant(where.stored()[0])
    if not {"delegating", "reading", "reading_window", "reading_tight"} <= variants.keys():
        return None
    least = {name: min(where.get_accuracy(found, LARGEST)) for name, found in variants.items()}
    medians = {name: median(where.get_accuracy(found, LARGEST)) for name, found in variants.items()}
    return Claim(
        "Shown at most 36 entries of up to ten ledgers, a root that gives each ledger to a clone is right on 160 "
        f"entries in {medians['delegating']:.2f} of the cases (median of seeds, lowest {least['delegating']:.2f}), and "
        f"a reader with full attention in {medians['reading']:.2f}.",
        "where",
        "python -m studies where --rerun where/delegating/seed0",
        [*variants["delegating"], *variants["reading"]],
        "Readers that see a window of their context need no clones, but are less robust: "
        f"{medians['reading_window']:.2f} and {medians['reading_tight']:.2f}, lowest {least['reading_window']:.2f} and "
        f"{least['reading_tight']:.2f}.",
    )


def _claim_costs() -> Claim | None:
    variants = where.group_by_variant(where.stored()[0])
    names = ("delegating", "reading_tight", "reading_window")
    if not set(names) <= variants.keys():
        return None
    accurate = {name: where.list_accurate(variants[name], "6x20") for name in names}
    if not all(accurate.values()):
        return None

    def get_ratio(get_cost: Callable[[Cell, str], float], reader: str = "reading_tight") -> float:
        above, below = (mean(get_cost(cell, "6x20") for cell in accurate[name]) for name in ("delegating", reader))
        return above / below

    total, path, concurrent, seen = (
        partial(where.get_cost, cost=cost)
        for cost in ("total_tokens", "critical_path_tokens", "concurrent_context", "visible_token_steps")
    )
    return Claim(
        f"Clones need x{get_ratio(path):.2f} of the critical path of a reader with an attention window, and "
        f"x{get_ratio(seen):.2f} of the keys that its decoding steps see, for x{get_ratio(total):.2f} of the tokens "
        f"(6 ledgers of 20 entries; {len(accurate['delegating'])} and {len(accurate['reading_tight'])} seeds that are "
        "accurate). These are counts, not times, and those of the scripts that both have learned.",
        "where",
        "python -m studies where --rerun where_tight/reading/seed0",
        [*variants["delegating"], *variants["reading_tight"]],
        "This reader is the best that an outside reader of the page found after the freeze. Of our own, with a looser "
        f"window, clones need x{get_ratio(seen, 'reading_window'):.2f} of the keys. All contexts of the tree together "
        f"are as large as the reader's one: x{get_ratio(concurrent):.2f}. A reader that drops what it no longer sees "
        f"keeps fewer keys: the clones together x{get_ratio(where.get_kept_keys):.1f} of them. A machine that plays "
        "the clones one after the other has no shorter path.",
    )


def _claim_decision() -> Claim | None:
    deciding = of(when.stored()[0], "when").get("deciding", [])
    if trained.list_missing(deciding, ("when",)):  # nothing is claimed before every seed has been run
        return None

    def get_reward(name: str) -> str:
        return shown(over_seeds([when.get_rewards(cell, "both_new")[name] for cell in deciding]), 3)

    agreement = shown(over_seeds(when.get_agreement(deciding, "both_new")))
    gains = zip(*(when.get_regrets(deciding, "both_new", rival) for rival in ("always", "never")), strict=True)
    num_better = sum(max(pair) < -when.SMALLEST_GAIN for pair in gains)
    return Claim(
        "Demonstrations show calls and reading half and half. After RL of the root's first turn, the choice earns "
        f"more than always calling and than never calling with {num_better} of {len(deciding)} seeds, on sizes and "
        f"windows that no demonstration had: reward {get_reward('policy')}, always {get_reward('always')}, never "
        f"{get_reward('never')}. Of the instances on which the choice matters, {agreement} are decided well. The "
        "choice follows price and size coarsely, and at the four trained prices only.",
        "when",
        "python -m studies when --rerun when/deciding/seed10",
        deciding,
        f"A threshold rule fitted on the same training episodes earns {get_reward('threshold')}, without the window "
        f"{get_reward('without_window')}, without the size {get_reward('without_size')}, without the price "
        f"{get_reward('without_price')}. A table of twelve entries and imitation of the better demonstration choose as "
        "well as RL (by an outside reader).",
    )


def _claim_counterfactual_credit() -> Claim | None:
    runs = credit_map.cells(credit_map.stored(credit_map.STORE))
    broadcast = runs["additive-16", credit_map.BASELINE]
    counterfactual = runs["additive-16", "diff_loo"]
    ratio = credit_map.speed_up(counterfactual, broadcast, 0)
    priced = credit_map.speed_up(counterfactual, broadcast, 1)
    return Claim(
        "In the symbolic game with sixteen clones and one graded sum, counterfactual credit (`diff_loo`) takes "
        f"{ratio.mean:.1f} [{ratio.low:.1f}, {ratio.high:.1f}] times fewer decisions than everybody's return for "
        "everybody.",
        "credit_map",
        "python -m studies credit_map --rerun additive-16/diff_loo",
        [*broadcast, *counterfactual],
        f"Where a replayed join costs as much as a decision, {priced.mean:.1f} [{priced.low:.1f}, {priced.high:.1f}]; "
        "under AND, nothing.",
    )


def _claim_credit_by_part() -> Claim | None:
    variants = of(cells.stored()[0], "cells")
    baseline = {cell["seed"]: cell for cell in variants[cells.BASELINE]}
    ratios = [cells.speed_up(cell, baseline[cell["seed"]]) for cell in variants["parts"]]
    gaps = cells.get_gaps(variants["parts"], baseline)
    return Claim(
        "With sixteen clones that are language models, credit by parts of the grade comes to the end of `rloo` in "
        f"{each(ratios, 1)} times fewer tokens (every seed; -: never). Its mean return is higher with "
        f"{sum(gap > 0 for gap in gaps)} of {len(gaps)} seeds (sign test, p = {sign_test(gaps):.2g}).",
        "cells",
        "python -m studies cells --rerun cells/parts/seed0",
        [*variants["parts"], *variants[cells.BASELINE]],
        "`rloo`, one return for all agents.",
    )


def _claim_learning_signals() -> Claim | None:
    found = cells_in(methods.FOLDER)
    verdicts = [
        methods.verdict(methods.gaps(variants, variant, family.baseline, family)).strip("*")
        for family in methods.FAMILIES
        for variants in [of(found, family.experiment)]
        for variant in variants
        if variant != family.baseline
    ]
    told_apart = sum(verdict != "undecided" for verdict in verdicts)
    return Claim(
        f"Of {len(verdicts)} comparisons of learning signals from the literature with a baseline at equal compute, "
        f"{told_apart} can be told from no difference.",
        "methods",
        "python -m studies methods --rerun methods_when/default/seed0",
        found,
        "The trainer's recipe, which was tuned. The others have the options of their sources, and were not tuned.",
    )


def page(claims: Sequence[Claim]) -> str:
    """Return the text of `docs/claims.md`."""
    lines = [
        [
            claim.text,
            claim.rival,
            f"[{claim.page}]({claim.page}.md)",
            f"`{claim.command}`",
            f"{len({cell['seed'] for cell in claim.evidence})}",
            f"{sum(cell['cpu_seconds'] for cell in claim.evidence) / 60:.0f}",
        ]
        for claim in claims
    ]
    heads = ["claim", "strongest rival that was tried", "page", "one cell", "seeds", "CPU-min"]
    return joined([HEAD, table(heads, lines), END])


HEAD = """# Claims

This page is for readers who want to check what the project says. Each line is computed from stored cells, and its page
has every seed, what was predicted before, and the log of tuning. The fourth column makes one cell again. CPU minutes
are those of training for all cells of a line, on shared machines. The models have 0.17 M parameters, and nothing
follows from them for a large model."""

END = """`python -m studies claims` prints this page. CI repeats two runs of the credit map, one with counterfactual
credit and one with everybody's return for everybody, and compares them with what is stored. [What a hostile reader
would say](hostile.md) has the objections. No gain is claimed for a real model: on [SmolLM2-135M](smollm2.md)
delegation has not paid yet, and neither has it [in a novel](novels_results.md)."""


STUDY = Study(page_file=DOCS / "claims.md", page=lambda: page(make_claims()))
