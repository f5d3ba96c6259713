"""How far the policies of the long ledgers reach, and why: what a reader of docs/delegation.md will doubt first.

    python -m studies delegation --rerun reach     # after the cells quick/seed5 to quick/seed9, 25 minutes
    python -m studies delegation --rerun rotary    # after the cells base_100000/reading, 10 minutes
    python -m studies delegation --rerun told      # needs no run: the shipped policy `deciding`, 20 seconds

The first writes evidence/reach.json, which that page is printed from: the longest contexts of training and test,
cells with a part longer than any in training, readers whose rotary positions are scaled after training, and an
perfect reader that reads all at once. The second writes rotary.json: the same scaling of readers that were trained
with another rotary base. The third writes told.json: how often the shipped policy `deciding` delegates when its
prompt says a wrong size, when it says none, and when the window at test is another one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from selfcest_agents.language import language_of
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env import __version__
from selfcest_env.reward import make_reward
from selfcest_env.tasks import Style
from selfcest_env.tasks.long_ledgers import AT_ONCE, ONE_BY_ONE, LongLedgers
from selfcest_env.tasks.range_sum import MAX_POSITION, TERSE, RangeQuery
from selfcest_env.tasks.source import make_task
from selfcest_eval.play.config import StudyConfig, load_study
from selfcest_eval.play.policies import make_policy, run_file
from selfcest_eval.play.results import read_results
from selfcest_training.config import RunConfig
from selfcest_training.config_file import dump_config, load_config, load_stored_config
from selfcest_training.families import make_families
from selfcest_training.shipped import find_model_folder
from selfcest_training.stages.warmstart import play_demonstrations
from studies.runner import CONFIGS, Rerun, selfcest, store_json

COSTS = ("total_tokens", "generated_tokens", "critical_path_tokens", "peak_context", "kv_token_steps", "billed_tokens")
PLAYS = {
    "delegating": (Style.DELEGATE, ONE_BY_ONE),
    "reading": (Style.READ, ONE_BY_ONE),
    "reading at once": (Style.READ, AT_ONCE),
}
SHOWN_TOKENS = 50_000  # of demonstrations of each phase that are looked at; the longest ones are not rare
Rope = Mapping[str, Any]
# What is played: cells by their experiment, the variants that are gathered, and rotary positions set after training.
REACH = (
    "quick",
    ("delegating", "reading"),
    {
        "linear_2": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        "theta_2": {"rope_type": "default", "rope_theta": 20_000.0},
        "theta_4": {"rope_type": "default", "rope_theta": 40_000.0},
    },
)
ROTARY = (
    "base_100000",
    ("reading",),
    {f"theta_{factor}": {"rope_type": "default", "rope_theta": factor * 100_000.0} for factor in (2, 4)},
)
TRUE_SIZES, HINTS = (4, 8, 13, 18, 23), (5, 10, 15, 20, 25)  # one size of each class that a prompt may say
STUDIES: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Rope]]] = {"reach": REACH, "rotary": ROTARY}


def shown() -> dict[str, int]:
    """By variant: the longest context, in tokens, among demonstrations of its warm start."""
    long_ledgers, quick = load_config(CONFIGS / "long_ledgers.yaml", []), load_config(CONFIGS / "quick.yaml", [])
    variants = {"delegating": quick, "reading": quick, "reading_far": long_ledgers, "reading_long": long_ledgers}
    return {variant: max(_contexts(config, variant)) for variant, config in variants.items()}


def _contexts(config: RunConfig, variant: str) -> Iterator[int]:
    language, families = language_of(config.model), make_families(config.tasks, "train")
    reward = make_reward(config.reward.name, **config.reward.options)
    for number, phase in enumerate(config.variants[variant].warmstart.phases):
        limits = config.limits_of(variant)
        samples = play_demonstrations(language, limits, reward, families, phase, 0, number, SHOWN_TOKENS)
        yield max(map(len, samples))


def asked(episodes: int = 200) -> dict[str, dict[str, dict[str, float]]]:
    """By eval set of quick.yaml and perfect player: mean costs, and the longest context."""
    config = load_config(CONFIGS / "quick.yaml", [])
    language, found = language_of(config.model), dict[str, dict[str, dict[str, float]]]()
    for eval_set in config.evaluation.eval_sets:
        for name, (style, reading) in PLAYS.items() if eval_set.family == "ledgers" else ():
            source = LongLedgers(**{**eval_set.options, "reading": reading})
            limits = replace(config.limits_of("delegating" if style is Style.DELEGATE else "reading"), turn_tokens=1000)
            rules, rng = language.rules(limits), np.random.default_rng(0)
            requests = [RolloutRequest(str(i), source.draw(rng), i) for i in range(episodes)]
            policy = ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec)
            costs = [record.cost for record in rollout(requests, policy, rules)]
            of_cell = found.setdefault(eval_set.size, {})
            of_cell[name] = {key: round(mean(getattr(cost, key) for cost in costs), 1) for key in COSTS}
            of_cell[name]["longest_context"] = max(cost.peak_context for cost in costs)
    return found


def gather(name: str, runs: Path, seeds: tuple[int, ...]) -> None:
    """The policies of single cells, laid out as one run's, and copies of the readers that scale rotary positions."""
    experiment, variants, scaled = STUDIES[name]
    config = load_config(CONFIGS / f"{experiment}.yaml", [])
    for copy, rope in {name: None, **{f"{name}_{how}": rope for how, rope in scaled.items()}}.items():
        shutil.rmtree(runs / copy, ignore_errors=True)
        for variant in variants:
            for seed in seeds:
                there = runs / copy / variant / f"seed{seed}" / "model"
                shutil.copytree(runs / f"{experiment}_{variant}_seed{seed}" / variant / f"seed{seed}" / "model", there)
                if rope is not None:
                    model = json.loads((there / "config.json").read_text(encoding="utf-8"))
                    text = json.dumps(model | {"rope_parameters": rope})
                    (there / "config.json").write_text(text, encoding="utf-8")
        (runs / copy / "config.yaml").write_text(dump_config(config), encoding="utf-8")


def played(name: str, study: StudyConfig, path: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By family, cell and strategy: the accuracy of every seed."""
    gather(name, Path("runs"), study.seeds)
    selfcest("evaluate", "-c", str(path), "--resume")
    right: dict[tuple[str, str, str], dict[int, list[bool]]] = {}
    for result in read_results(study.folder / "results.jsonl"):
        place = result.place
        by_seed = right.setdefault((place.family, place.size, place.strategy), {})
        by_seed.setdefault(place.seed, []).append(result.grade.correct)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (family, size, strategy), by_seed in right.items():
        accuracy = [round(mean(by_seed[seed]), 4) for seed in study.seeds]
        found.setdefault(family, {}).setdefault(size, {})[strategy] = accuracy
    return found


def measure_told_sizes(episodes: int = 50) -> dict[str, Any]:
    """How often the shipped `deciding` calls clones, and how often it is right, by what its prompt says of the size.

    Returns:
        `sizes`: by true number of terms and size in the prompt (0: none) the share that called and the accuracy.
        `windows`: the same by window at test in tokens (0: none) and true number of terms, with the right size in the
            prompt.
    """
    folder = find_model_folder("deciding")
    limits = load_stored_config(run_file(folder)).limits_of("deciding")
    source = make_policy("model", {"folder": "deciding"}, "policy")
    reward = make_reward("correct")
    with closing(source.load(0)) as player:

        def measure_decisions(size: int, hint: int, window: int | None) -> dict[str, float]:
            rng = np.random.default_rng(size)  # the same sums whatever the hint and the window
            requests = []
            for index in range(episodes):
                start = int(rng.integers(1, MAX_POSITION - size + 2))
                query = RangeQuery(int(rng.integers(0, 10)), start, start + size - 1, TERSE, hint)
                task = make_task("range_sum", query.write(), str(query.answer), {"size": size})
                requests.append(RolloutRequest(str(index), task, index, replace(limits, context_tokens=window)))
            records = [reward.score(record) for record in player.play(requests, 0.0)]
            # A call that does not fit into the window is refused, and has been decided all the same.
            called = mean("<call>" in record.root.turns[0].generation.text for record in records)
            return {"called": round(called, 4), "accuracy": round(mean(r.team_return for r in records), 4)}

        sizes = {
            str(size): {str(hint): measure_decisions(size, hint, limits.context_tokens) for hint in (0, *HINTS)}
            for size in TRUE_SIZES
        }
        windows = {
            str(window or 0): {str(size): measure_decisions(size, -(-size // 5) * 5, window) for size in TRUE_SIZES}
            for window in (None, 40, 100)
        }
    return {"version": __version__, "episodes": episodes, "sizes": sizes, "windows": windows}


def measure(name: str, how: Rerun) -> Path:
    """Play `reach`, `rotary` or `told`, store what was measured, and return its file."""
    if name == "told":
        return store_json(how.folder / "told.json", measure_told_sizes())
    path = CONFIGS / "cpu" / f"{name}_frontier.yaml"
    study = load_study(path, [])
    how.check_new(study.folder)
    looked_up = {"shown": shown(), "asked": asked()} if name == "reach" else {}
    found = {"seeds": study.seeds, "episodes": study.episodes, **looked_up, **played(name, study, path)}
    return store_json(how.folder / f"{name}.json", found)
