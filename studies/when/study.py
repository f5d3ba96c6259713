"""The page on when delegation is worth its cost: a decision after size, window and price, which prompts state.

The page is a function of the stored cells. `--rerun when/deciding/seed0` trains and plays one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from selfcest_agents.player import ModelPlayer
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.reward import make_reward
from selfcest_env.types import ROOT
from selfcest_eval.play.policies import make_policy
from selfcest_eval.play.results import Result
from selfcest_eval.report.training_run import EvaluatedPolicy
from selfcest_eval.stats.statistics import over_seeds
from selfcest_training.config import RunConfig
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
from studies.trained import WHEN, list_missing, rerun
from studies.when.choices import describe, fit_table, fit_threshold_rule, read_instances, read_training_values

EVIDENCE = Path(__file__).parent / "evidence"
EVAL_SETS = {
    "seen": "sizes and windows of training",
    "new_sizes": "new sizes",
    "new_windows": "new windows",
    "both_new": "new sizes and windows",
    "missing": "no size stated",
    "wrong": "a wrong size stated",
}
REWARDS = {
    "policy": "policy",
    "always": "always",
    "never": "never",
    "table": "look-up table of the prompt",
    "by_price": "table of the price",
    "by_comparison": "table of comparison and price",
    "threshold": "threshold rule",
    "hindsight": "threshold rule in hindsight",
    "oracle": "better choice of each instance",
}
PRICES = ("0", "1", "5", "6", "7")  # of when.yaml
LEFT_OUT = 100  # episodes of which clones are left out
MAX_REGRET = 0.03
MAX_UNNEEDED = 0.2
MIN_HIDDEN_REGRET = 0.05


def stored() -> tuple[list[Cell], list[Cell], list[Cell]]:
    """Return the reported cells, those of the first version of the experiment, and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), cells_in(EVIDENCE / "first"), tuning


def measure(config: RunConfig, variant: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return what the choices of a trained policy are worth, and how often its answers need each clone."""
    (seed,) = config.seeds
    observed = read_training_values(config.folder / variant / f"seed{seed}" / "episodes.jsonl")
    rules = {
        "threshold": fit_threshold_rule(observed),
        "table": fit_table(observed),
        "by_price": fit_table(observed, lambda prompt: prompt.price),
        "by_comparison": fit_table(observed, lambda prompt: (prompt.comparison, prompt.price)),
    }
    choices: dict[str, Any] = {}
    for stage in EvaluationStage:
        labels = [
            EvaluatedPolicy(variant, stage, 0.0, strategy).label(config)
            for strategy in ("plain", "always_delegates", "never_delegates")
        ]
        instances = read_instances(results, *labels)
        name = "after" if stage is EvaluationStage.AFTER else "before"
        choices[name] = {eval_set: describe(found, rules) for eval_set, found in instances.items()}
    last = EvaluatedPolicy(variant, EvaluationStage.AFTER, 0.0).label(config)
    played = [result for result in results if result.place.strategy == last and result.place.size == "seen"]
    records = [result.episodes[result.chosen] for result in played]
    folder = config.folder / variant / f"seed{seed}" / "model"
    return {
        "training_groups": len(observed),
        "choices": choices,
        "left_out": leave_clones_out(config, variant, folder, records[:LEFT_OUT]),
    }


def leave_clones_out(config: RunConfig, variant: str, folder: Path, records: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Leave each clone out of right answers, greedily. Return how often the answer stayed right, and of how many."""
    player = make_policy("model", {"folder": str(folder)}, "policy").load(0)
    assert isinstance(player, ModelPlayer)
    reward = make_reward(config.reward.name, **config.reward.options)
    player = replace(player, limits=config.limits_of(variant), reward=reward)
    count = {"right": 0, "clones": 0}
    for record in records:
        if record.answer != record.task.answer:
            continue
        clones = [agent.agent_id for agent in record.agents if agent.agent_id != ROOT]
        replays = [Replay.of(record.episode_id, {clone: Intervention.DEFAULT}) for clone in clones]
        for replayed in player.play_replays([record], replays, 0.0).values():
            count["right"] += replayed.record.answer == record.task.answer
            count["clones"] += 1
    return count


def page(cells: Sequence[Cell], first: Sequence[Cell], tuning: Sequence[Cell]) -> str:
    """Return the text of `docs/when.md`."""
    main = of(cells, "when").get("deciding", [])
    hidden = of(cells, "when_hidden").get("deciding", [])
    parts = [HEAD, *([evidence_line(cells, "`--rerun`")] if cells else []), list_missing(cells, WHEN)]
    parts += [PREDICTED, _make_prediction_table(main, hidden)]
    if main:
        parts += [REWARD, _make_reward_table(main), REGRET, _make_regret_table(main)]
        parts += [SHARES, _make_share_table(main), CLONES, _make_left_out_table(main)]
    if hidden:
        parts += [HIDDEN, _make_reward_table(hidden)]
    uncompared = of(cells, "when_uncompared").get("deciding", [])
    if uncompared:
        parts += [UNCOMPARED, _make_reward_table(uncompared), _make_share_table(uncompared)]
    if first:
        parts += [FIRST, _make_prediction_table(first, []), _make_reward_table(first), _make_share_table(first)]
        parts += [_make_left_out_table(first)]
    if cells or first:
        parts += [PROVENANCE, provenance([*cells, *first])]
    return joined([*filter(None, parts), TUNING, tuning_table(tuning)])


def get_rewards(cell: Cell, eval_set: str, stage: str = "after") -> Mapping[str, float]:
    rewards: Mapping[str, float] = cell["choices"][stage][eval_set]["rewards"]
    return rewards


def get_regrets(cells: Sequence[Cell], eval_set: str, rival: str = "threshold") -> list[float]:
    """Return how much more a rule earns than the policy, for each seed."""
    return [get_rewards(cell, eval_set)[rival] - get_rewards(cell, eval_set)["policy"] for cell in cells]


def _list_rewards(cells: Sequence[Cell]) -> list[str]:
    """List what these cells have rewards of. Those of the first version lack two tables."""
    return [name for name in REWARDS if name in get_rewards(cells[0], "seen")]


def _make_reward_table(cells: Sequence[Cell]) -> str:
    names = _list_rewards(cells)
    lines = []
    for eval_set, words in EVAL_SETS.items():
        before = over_seeds([get_rewards(cell, eval_set, "before")["policy"] for cell in cells])
        rewards = [over_seeds([get_rewards(cell, eval_set)[name] for cell in cells]) for name in names]
        lines.append([words, shown(before, 3), *(shown(reward, 3) for reward in rewards)])
    return table(["instances", "before RL", *(REWARDS[name] for name in names)], lines)


def _make_regret_table(cells: Sequence[Cell]) -> str:
    lines = []
    for eval_set, words in EVAL_SETS.items():
        for rival in ("threshold", "hindsight"):
            regrets = get_regrets(cells, eval_set, rival)
            lines.append([words, REWARDS[rival], each(regrets, 3), shown(over_seeds(regrets), 3, "+")])
        agreement = [cell["choices"]["after"][eval_set]["agreement"] for cell in cells]
        known = [value for value in agreement if value is not None]
        lines.append(
            [words, "agreement with the better choice", each(agreement), f"{mean(known):.2f}" if known else "-"]
        )
    return table(["instances", "regret against", "every seed", "mean"], lines)


def _make_share_table(cells: Sequence[Cell]) -> str:
    """Return the share delegated by price, where the window has room and where it has not, before and after RL."""
    lines = []
    for eval_set in ("seen", "both_new"):
        for kind, words in (("fits", "room enough"), ("too_long", "no room")):
            for stage in ("before", "after"):
                by_price = [cell["choices"][stage][eval_set]["delegated_by_price"][kind] for cell in cells]
                shares = [[found[price][0] for found in by_price if price in found] for price in PRICES]
                means = [f"{mean(found):.2f}" if found else "-" for found in shares]
                lines.append([EVAL_SETS[eval_set], words, f"{stage} RL", *means])
    return table(["instances", "window", "", *(f"price {price}" for price in PRICES)], lines)


def _make_left_out_table(cells: Sequence[Cell]) -> str:
    lines = [[str(cell["seed"]), f"{cell['left_out']['right']} of {cell['left_out']['clones']}"] for cell in cells]
    return table(["seed", "answers that stay right"], lines)


def _make_prediction_table(main: Sequence[Cell], hidden: Sequence[Cell]) -> str:
    lines = []

    def add(text: str, values: Sequence[float], holds: Callable[[Sequence[float]], bool]) -> None:
        if not values:
            lines.append([text, "not run yet", ""])
        else:
            lines.append([text, each(values, 3), "held" if holds(values) else "**failed**"])

    for eval_set in ("seen", "new_sizes", "new_windows", "both_new"):
        text = f"{EVAL_SETS[eval_set]}: mean regret against the threshold rule at most {MAX_REGRET}"
        add(text, get_regrets(main, eval_set), lambda values: mean(values) <= MAX_REGRET)
    rivals = [name for name in ("always", "never", "table", "by_price") if not main or name in _list_rewards(main)]
    for rival in rivals:
        text = f"new sizes and windows: every seed earns more than {REWARDS[rival]}"
        add(text, [-regret for regret in get_regrets(main, "both_new", rival)], lambda values: min(values) > 0)
    text = f"share of answers that stay right without a clone: at most {MAX_UNNEEDED} in every seed"
    shares = [cell["left_out"]["right"] / max(1, cell["left_out"]["clones"]) for cell in main]
    add(text, shares, lambda values: max(values) <= MAX_UNNEEDED)
    text = f"without the window in the prompt: every regret against the better choice at least {MIN_HIDDEN_REGRET}"
    add(text, get_regrets(hidden, "seen", "oracle"), lambda values: min(values) >= MIN_HIDDEN_REGRET)
    return table(["predicted", "found, every seed", ""], lines)


HEAD = """# When delegation is worth its cost

Experiments with the embedded model (0.17 M parameters) on sums over three keyed ledgers with fresh digits; nothing
follows for a large model. The prompt `?[1]C[2]E[3]A;12,15,3` states how many entries the ledgers have together
(12), for how many one context has room (15), and the price of a clone (3). All three are drawn for each task. A reader
pays for its long critical path, a root that calls clones pays their price, and a reader for which the window has no
room is wrong. The warm start shows both styles half and half, whatever the prompt states, and without the window; its
demonstrations compare size and window (`12153+`) and do not say what follows. RL has to find out *when*. A third of
the sizes and of the windows is held out of demonstrations and of RL. 15 % of the prompts state no size and 10 % a
wrong one.

`python -m studies when` prints this page from `studies/when/evidence`, and `--rerun when/deciding/seed0` makes a cell
again. The configuration is tuned on seeds from 100 on; configuration and predictions are then committed, and every
reported seed is run once."""

PREDICTED = """## Predictions

They are committed before the first reported seed."""

REWARD = """## Reward, and what rules would earn

Every instance was played by the policy's own choice and with either choice forced, from the same weights. A rule earns
the reward of the choice that it takes. The *look-up table* and the *threshold rule* are fitted on the policy's own
training episodes: the table knows each prompt that it has seen, and the rule delegates where the stated size exceeds
the window by a number that depends on the price. *In hindsight* the rule is fitted on these very instances. ± is a 95 %
interval over seeds (Student's t)."""

REGRET = """## Regret

How much more a rule earns than the policy; below 0 the policy earns more. *Agreement* is the share of instances on
which the policy took the better choice, among those on which the choices differ by 0.02 or more."""

SHARES = "## What the choice follows\n\nShare of the instances on which the root calls clones, mean over seeds."

CLONES = """## Whether answers need the clones

Of right answers by clones, each clone was left out, greedily. By chance one in ten stays right."""

HIDDEN = """## Without the window in the prompt

The control: the same training, but no prompt states the window."""

UNCOMPARED = """## Without the comparison in the demonstrations

The control: the same training, but demonstrations only repeat the numbers (`12153`), so that RL has to compare size and
window, too."""

FIRST = """## The first version

It was frozen and run with two seeds of ten, and then stopped: a hostile reading found that **it asks too little**. No
price lies between 1 and 5, so that two bits decide: whether the written comparison is `-`, and whether the price is
low. A table of ten entries over both, fitted on the first step of RL, earned more than the policy in both seeds
(measured by an outside reader; no command here prints it). The look-up table knows whole prompts and is a weak rival.
Seed 1 did not learn the price. The next version draws prices for which the size matters by degree, and has that table
as its rival."""

PROVENANCE = "## Cells\n\nCPU-s are of training, on a shared machine. A warm start that has not learned begins again."

TUNING = "## Tuning\n\nEvery run that led to the frozen configuration, in order."


def rerun_cell(name: str, how: Rerun) -> list[Path]:
    return rerun(name, how, measure)


STUDY = Study(
    page_file=DOCS / "when.md",
    page=lambda: page(*stored()),
    rerun=rerun_cell,
    cells="EXPERIMENT[/VARIANT]/seedN",
)
