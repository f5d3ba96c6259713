"""The page on when delegation is worth its cost: a decision after size, window and price, which prompts state.

The page is a function of the stored cells. `--rerun when/deciding/seed0` trains and plays one again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from studies.when.choices import (
    NO_ROOM,
    SIZE_RANGES,
    describe,
    fit_table,
    fit_threshold_rule,
    read_instances,
    read_training_values,
)

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
    "without_price": "rule without the price",
    "without_window": "rule without the window",
    "without_size": "rule without the size",
    "threshold": "threshold rule",
    "hindsight": "threshold rule in hindsight",
    "oracle": "better choice of each instance",
}
KNOWN_NUMBERS = ("seen", "new_sizes", "new_windows", "both_new")  # eval sets whose prompts state true sizes
RULES = ("table", "without_price", "without_window", "without_size")
BEATEN = {"seen": RULES, "both_new": ("always", "never", "table")}  # rules that earn less than the policy, as predicted
OUTDONE = {"seen": RULES, "both_new": ("table", "without_price", "without_size")}  # and that choose worse
LEFT_OUT = 100  # episodes of which clones are left out
MAX_REGRET = 0.02
MIN_AGREEMENT = 0.85
MAX_UNNEEDED = 0.2
MIN_HIDDEN_REGRET = 0.05
SMALLEST_GAIN = 0.001  # of reward; less is a tie
FIRST_MAX_REGRET = 0.03  # of the first version


def stored() -> tuple[list[Cell], list[Cell], list[Cell]]:
    """Return the reported cells, those of the first version of the experiment, and the log of tuning runs."""
    tuning: list[Cell] = read_json(EVIDENCE / "tuning.json")
    return cells_in(EVIDENCE), cells_in(EVIDENCE / "first"), tuning


def measure(config: RunConfig, variant: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return what the choices of a trained policy are worth, and how often its answers need each clone."""
    (seed,) = config.seeds
    observed = read_training_values(config.folder / variant / f"seed{seed}" / "episodes.jsonl")
    rules = {
        "table": fit_table(observed),
        **{f"without_{number}": fit_threshold_rule(observed, number) for number in ("price", "window", "size")},
        "threshold": fit_threshold_rule(observed),
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
    by_experiment = {name: of(cells, name).get("deciding", []) for name in WHEN}
    main = by_experiment["when"]
    parts = [HEAD, *([evidence_line(cells, "`--rerun`")] if cells else []), list_missing(cells, WHEN)]
    parts += [PREDICTED, _make_prediction_table(by_experiment)]
    if main:
        parts += [WARM_STARTS, _make_warm_start_table(main), _describe_seeds_without_a_choice(main)]
        parts += [CHOICES, _make_choice_table(main, "seen"), _make_choice_table(main, "both_new")]
        parts += [REWARD, _make_reward_table(main), AGREEMENT, _make_agreement_table(main)]
        parts += [REGRET, _make_regret_table(main), CLONES, _make_left_out_table(main)]
    if by_experiment["when_hidden"]:
        parts += [HIDDEN, _make_reward_table(by_experiment["when_hidden"])]
    if not list_missing(main, ("when",)):
        parts.append(OUTSIDE)
    if first:
        parts += [FIRST, _make_table_of_predictions(_predict_regret(first, FIRST_MAX_REGRET))]
        parts += [_make_reward_table(first)]
    if cells or first:
        parts += [PROVENANCE, provenance([*cells, *first])]
    return joined([*filter(None, parts), TUNING, tuning_table(tuning)])


def get_rewards(cell: Cell, eval_set: str, stage: str = "after") -> Mapping[str, float]:
    rewards: Mapping[str, float] = cell["choices"][stage][eval_set]["rewards"]
    return rewards


def get_regrets(cells: Sequence[Cell], eval_set: str, rival: str = "threshold") -> list[float]:
    """Return how much more a rule earns than the policy, for each seed."""
    return [get_rewards(cell, eval_set)[rival] - get_rewards(cell, eval_set)["policy"] for cell in cells]


def get_agreement(cells: Sequence[Cell], eval_set: str, name: str = "policy") -> list[float]:
    """Return the share of instances on which the policy or a rule takes the better choice, for each seed."""
    return [cell["choices"]["after"][eval_set]["agreement"][name] for cell in cells]


def _make_reward_table(cells: Sequence[Cell]) -> str:
    names = [name for name in REWARDS if name in get_rewards(cells[0], "seen")]
    lines = []
    for eval_set, words in EVAL_SETS.items():
        before = over_seeds([get_rewards(cell, eval_set, "before")["policy"] for cell in cells])
        rewards = [over_seeds([get_rewards(cell, eval_set)[name] for cell in cells]) for name in names]
        lines.append([words, shown(before, 3), *(shown(reward, 3) for reward in rewards)])
    return table(["instances", "before RL", *(REWARDS[name] for name in names)], lines)


def _make_agreement_table(cells: Sequence[Cell]) -> str:
    names = list(cells[0]["choices"]["after"]["seen"]["agreement"])
    lines = []
    for eval_set, words in EVAL_SETS.items():
        shares = [over_seeds(get_agreement(cells, eval_set, name)) for name in names]
        lines.append([words, *(shown(share) for share in shares)])
    return table(["instances", *(REWARDS[name] for name in names)], lines)


def _make_regret_table(cells: Sequence[Cell]) -> str:
    lines = []
    for eval_set, words in EVAL_SETS.items():
        for rival in ("threshold", "hindsight"):
            regrets = get_regrets(cells, eval_set, rival)
            lines.append([words, REWARDS[rival], each(regrets, 3), shown(over_seeds(regrets), 3, "+")])
    return table(["instances", "regret against", "every seed", "mean"], lines)


def _make_choice_table(cells: Sequence[Cell], eval_set: str) -> str:
    """Return by size and price the share that calls clones before and after RL, and the share that should."""
    stages = {stage: [cell["choices"][stage][eval_set]["choices"] for cell in cells] for stage in ("before", "after")}
    prices = sorted({price for found in stages["after"] for by_price in found.values() for price in by_price}, key=int)
    lines = []
    for sizes in (*SIZE_RANGES, NO_ROOM):
        line = [sizes]
        for price in prices:
            shares = []
            for stage, column in (("before", 0), ("after", 0), ("after", 1)):
                counts = [found.get(sizes, {}).get(price, [0, 0, 0]) for found in stages[stage]]
                total = sum(count[2] for count in counts)
                shares.append(f"{sum(count[column] for count in counts) / total:.2f}" if total else "-")
            line.append("{} → {} ({})".format(*shares))
        lines.append(line)
    return table([f"{EVAL_SETS[eval_set]}: entries", *(f"price {price}" for price in prices)], lines)


def list_without_a_choice(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells whose warm start cannot read: always reading earns less than half of always calling."""
    found = []
    for cell in cells:
        rewards = get_rewards(cell, "seen", "before")
        if rewards["never"] < rewards["always"] / 2:
            found.append(cell)
    return found


def _make_warm_start_table(cells: Sequence[Cell]) -> str:
    rewards = [get_rewards(cell, "seen", "before") for cell in cells]
    lines = [
        [str(cell["seed"]), f"{r['always']:.3f}", f"{r['never']:.3f}"] for cell, r in zip(cells, rewards, strict=True)
    ]
    return table(["seed", "always calls clones", "always reads"], lines)


def _describe_seeds_without_a_choice(cells: Sequence[Cell]) -> str:
    without = list_without_a_choice(cells)
    if not without:
        return ""
    seeds = " and ".join(str(cell["seed"]) for cell in without)
    always = [agreement for eval_set in KNOWN_NUMBERS for agreement in get_agreement(without, eval_set)]
    text = (
        f"**In seed {seeds} the warm start cannot read**, so always reading earns less than half of always calling.\n"
        f"After RL its policy always calls, which is better on {min(always):.0%} to {max(always):.0%} of the\n"
        "instances that matter. All tables count this seed."
    )
    rest = [cell for cell in cells if cell not in without]
    if not rest:
        return text
    rewards = {name: mean(get_rewards(cell, "both_new")[name] for cell in rest) for name in REWARDS}
    return text + (
        " Without it, on new sizes and windows: policy "
        f"{rewards['policy']:.3f}, always\n{rewards['always']:.3f}, never {rewards['never']:.3f}, threshold rule "
        f"{rewards['threshold']:.3f}, agreement {mean(get_agreement(rest, 'both_new')):.2f}."
    )


def _make_left_out_table(cells: Sequence[Cell]) -> str:
    lines = [[str(cell["seed"]), f"{cell['left_out']['right']} of {cell['left_out']['clones']}"] for cell in cells]
    return table(["seed", "answers that stay right"], lines)


@dataclass(frozen=True)
class Prediction:
    """What was predicted, the figure of every seed (none: not run yet), and whether it holds."""

    text: str
    values: Sequence[float]
    holds: Callable[[Sequence[float]], bool]


def _predict_regret(cells: Sequence[Cell], most: float) -> list[Prediction]:
    predictions = []
    for eval_set in KNOWN_NUMBERS:
        text = f"{EVAL_SETS[eval_set]}: mean regret against the threshold rule at most {most}"
        predictions.append(Prediction(text, get_regrets(cells, eval_set), lambda values: mean(values) <= most))
    return predictions


def _make_prediction_table(by_experiment: Mapping[str, Sequence[Cell]]) -> str:
    main = by_experiment["when"]
    predictions = _predict_regret(main, MAX_REGRET)
    for eval_set in KNOWN_NUMBERS:
        text = f"{EVAL_SETS[eval_set]}: mean agreement with the better choice at least {MIN_AGREEMENT}"
        predictions.append(
            Prediction(text, get_agreement(main, eval_set), lambda values: mean(values) >= MIN_AGREEMENT)
        )
    for eval_set, rivals in BEATEN.items():
        for rival in rivals:
            text = f"{EVAL_SETS[eval_set]}: mean reward above that of: {REWARDS[rival]}"
            gains = [-regret for regret in get_regrets(main, eval_set, rival)]
            predictions.append(Prediction(text, gains, lambda values: mean(values) > 0))
    for eval_set, rivals in OUTDONE.items():
        for rival in rivals:
            text = f"{EVAL_SETS[eval_set]}: mean agreement above that of: {REWARDS[rival]}"
            pairs = zip(get_agreement(main, eval_set), get_agreement(main, eval_set, rival), strict=True)
            gains = [own - other for own, other in pairs]
            predictions.append(Prediction(text, gains, lambda values: mean(values) > 0))
    shares = [cell["left_out"]["right"] / max(1, cell["left_out"]["clones"]) for cell in main]
    text = f"share of answers that stay right without a clone: at most {MAX_UNNEEDED} in every seed"
    predictions.append(Prediction(text, shares, lambda values: max(values) <= MAX_UNNEEDED))
    text = f"without the window in the prompt: every regret against the better choice at least {MIN_HIDDEN_REGRET}"
    regrets = get_regrets(by_experiment["when_hidden"], "seen", "oracle")
    predictions.append(Prediction(text, regrets, lambda values: min(values) >= MIN_HIDDEN_REGRET))
    return _make_table_of_predictions(predictions)


def _make_table_of_predictions(predictions: Sequence[Prediction]) -> str:
    lines = []
    for prediction in predictions:
        if prediction.values:
            verdict = "held" if prediction.holds(prediction.values) else "**failed**"
            lines.append([prediction.text, each(prediction.values, 3), verdict])
        else:
            lines.append([prediction.text, "not run yet", ""])
    return table(["predicted", "found, every seed", ""], lines)


HEAD = """# When delegation is worth its cost

For readers who ask whether RL can teach *when* to delegate. The model is the embedded one (0.17 M parameters), the
task a sum over three keyed ledgers with fresh digits; nothing follows for a large model.

The prompt `?[1]C[2]E[3]A;12,15,6` states how many entries the ledgers have together (12), for how many one context
has room (15), and the price of a clone (6). All three are drawn for each task. A reader pays for its long critical
path, a root that calls clones pays their price, and a reader whose window has no room is wrong. So it pays to
delegate where the size exceeds the window, or where it exceeds a number that grows with the price. The warm start
shows both styles half and half, whatever the prompt states, and without the window. Its demonstrations write whether
the size fits the window (`12156+`); nothing in them says what follows, and nothing compares size and price. RL has to
find out *when*: it trains the root's first turn alone (the credit scheme `decision`; a KL term holds all other turns
at the warm start). A third of the sizes and of the windows is held out of demonstrations and of RL. 15 % of the
prompts state no size and 10 % a wrong one.

`python -m studies when` prints this page from `studies/when/evidence`, and `--rerun when/deciding/seed10` makes a
cell again. It is tuned on seeds from 100 on; configuration and predictions are then committed, and every reported
seed is run once."""

PREDICTED = """## Predictions

They are frozen before the first reported seed."""

WARM_STARTS = """## What the warm starts can do

Reward before RL with either choice forced, on sizes and windows of training."""

CHOICES = """## What the choice follows

Share of the instances on which the root calls clones, before RL → after RL, and in brackets the share on which clones
earn more. Instances of all seeds, by their true size."""

REWARD = """## Reward, and what rules would earn

Every instance was played by the policy's own choice and with either choice forced, from the same weights. A rule earns
the reward of the choice that it takes. All rules are fitted on the policy's own training episodes. The *threshold rule*
has a threshold of the size for each price, and another where the size exceeds the window; three other rules do not look
at one of the numbers (*without the size* still knows whether it fits the window). The *look-up table* knows each prompt
that it has seen. *In hindsight* the threshold rule is fitted on these very instances. ± is a 95 % interval over seeds
(Student's t). Each set has 100 instances, the same for every seed, so ± leaves out the error of drawing them."""

AGREEMENT = """## Agreement with the better choice

Share of the instances on which the better choice is taken, among those on which the choices differ by 0.02 or more."""

REGRET = """## Regret

How much more a rule earns than the policy; below 0 the policy earns more."""

CLONES = """## Whether answers need the clones

Of right answers by clones, each clone was left out, greedily. By chance one in ten stays right."""

HIDDEN = """## Without the window in the prompt

The control: the same training, but no prompt states the window."""

OUTSIDE = """## What an outside reader found

A hostile reader had seeds 11 to 17 with all files, and 35 minutes of CPU time. No command prints these figures. No leak
and no selection of seeds was found.

- **A table of twelve entries does as well**, fitted on the training episodes: call at price 3 always, at price 5 from
  10 entries on, at 7 and 9 from 20 on. It reads neither window nor last digit. Agreement on the four sets .96 .91 .95
  .92, the policy's .93 .87 .93 .89.
- **On new numbers, rules that ignore one do better than the policy**, as the table above shows. The predictions
  compare them on trained sizes and windows, and leave out the rows that fail.
- **The window is hardly tested.** It alone decides 15 of 400 instances, so the control without it loses little. Three
  of seven seeds call about as often whether the written comparison is `+` or `-`, and every seed reads `19,18,7` as a
  `+`.
- **Prices are four tokens, not a quantity.** At 4, 6 and 8, which no episode had, the better choice is taken on .66,
  .80 and .67 of the instances. The rule that calls where the comparison is `-` or the size is at least a x price + b,
  fitted on five steps of RL, takes it on .95 to .99.
- **RL was not needed.** Imitation of the better of two scripted demonstrations of each task, 400 updates from the same
  warm start, has an agreement of .95 .90 .95 .91, for an eighth of the CPU time, and repairs seed 13.
- Agreement leaves out the 12 to 14 of 100 instances on which choices differ by less than 0.02. With them the policy has
  .88 .82 .88 .84, the threshold rule .92 .93 .95 .94.
- Rules for prompts without a size changed in `76ae26e`, after seed 10.

So RL learns when to call, coarsely. That it follows a window, or a price as a number, is not shown."""

FIRST = """## The first version

It was run with two seeds of ten and then stopped: by an outside reader **it asks too little**. At prices 0, 1, 5, 6 and
7, two bits decide, and a table of ten entries earned more than the policy in both seeds."""

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
