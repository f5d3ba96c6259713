"""Estimate the cost of the experiments that need a GPU: tokens from the configs, hours from a stated throughput.

    python benchmarks/paper_cost.py
    python benchmarks/paper_cost.py --sampled-per-second 12000 --utilisation 0.4

Nothing here was measured. The counts of episodes and their budgets, the maximum of their tokens, are exact. The
throughput of a GPU and the tokens of an episode are assumptions, which the output states.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selfcest_eval.play.config import StudyConfig, load_study
from selfcest_training.config import RunConfig
from selfcest_training.config_file import load_config

CONFIGS = Path(__file__).parents[1] / "training" / "configs"
PARAMETERS = {"hub:Qwen/Qwen3-4B": 4.0e9, "hub:Qwen/Qwen3-1.7B": 1.7e9}
LARGEST = max(PARAMETERS.values())
# Per weight and trained token: forward 2, again for its checkpoints 2, backward 4, old and reference log-probs 2 each.
OPERATIONS = 12
PEAK = 989e12  # of an H100 SXM in bfloat16, dense
# Estimates of the tokens of an episode, clones included: generated tokens, and all tokens.
MATH = (2048, 4096)
QA = (1024, 6144)
LEDGERS = (512, 3072)
EPISODE = {
    "paper/arithmetic": MATH,
    "paper/aime": MATH,
    "paper/math_hard": MATH,
    "paper/mixed": MATH,
    "paper/musique": QA,
    "paper/two_wiki": QA,
    "gpu/qwen3_ledger": LEDGERS,
}
# Number of questions of the files that a study plays completely: a tenth of AIME 1983 to 2024, AIME 2025, level 5 of
# MATH's test part, and the development set of MuSiQue-Ans.
QUESTIONS = {"aime": 93, "aime_new": 30, "math_hard": 1324, "musique": 2417}


@dataclass(frozen=True)
class Rates:
    """The throughput of one GPU with the largest of the models.

    Attributes:
        sampled: sampled tokens per second.
        utilisation: share of the peak that training reaches.
    """

    sampled: float
    utilisation: float

    @property
    def trained(self) -> float:
        """Trained tokens per second."""
        return PEAK * self.utilisation / (OPERATIONS * LARGEST)

    def hours(self, parameters: float, sampled: float, trained: float = 0.0) -> float:
        return parameters / LARGEST * (sampled / self.sampled + trained / self.trained) / 3600


def episodes_of(config: RunConfig) -> tuple[int, int, int]:
    """Return the steps, the tasks per step and the episodes per task, which are equal for all variants."""
    ((steps, tasks, group),) = {(a.rl.steps, a.rl.tasks_per_step, a.rl.group_size) for a in config.variants.values()}
    return steps, tasks, group


def study_hours(name: str, study: StudyConfig, parameters: float, rates: Rates) -> tuple[float, float]:
    """Return the estimated and the maximum GPU-hours of a study. Only generated tokens count."""
    generated, used = EPISODE[name]
    estimate = 0.0
    most = 0.0
    for label, strategy in study.strategies.items():
        for eval_set in study.eval_sets_of(label):
            count = study.episodes or study.tasks[eval_set.family].options.get("limit") or QUESTIONS[eval_set.family]
            samples = int(strategy.options.get("samples", 1))
            estimate += sum(count * min(budget or 0, used * samples) * generated / used for budget in study.budgets)
            most += sum(count * (budget or 0) for budget in study.budgets)
    return rates.hours(parameters, estimate), rates.hours(parameters, most)


def table(rates: Rates) -> str:
    """Return the costs as a Markdown table, with the assumptions."""
    heads = ["config", "episodes of a variant: steps x tasks x group", "tokens of an episode: generated / all"]
    heads += [
        "M sampled / trained",
        "GPU-hours of a variant",
        "at most",
        "variants",
        "GPU-hours of its study",
        "at most",
    ]
    lines = [[*heads, "together"], ["---"] * (len(heads) + 1)]
    total = 0.0
    for name, (generated, used) in EPISODE.items():
        config = load_config(CONFIGS / f"{name}.yaml")
        study_file = CONFIGS / f"{name}_frontier.yaml"
        steps, tasks, group = episodes_of(config)
        parameters = PARAMETERS[config.model.options["source"]]
        episodes = steps * tasks * group
        budget = max(config.limits_of(variant).total_tokens or 0 for variant in config.variants)
        variant = rates.hours(parameters, episodes * generated, episodes * used)
        study = 0.0
        study_most = 0.0
        if study_file.is_file():
            study, study_most = study_hours(name, load_study(study_file), parameters, rates)
        together = len(config.variants) * variant + study
        total += together
        lines.append(
            [
                f"`{name}.yaml`",
                f"{steps} x {tasks} x {group} = {episodes:,}",
                f"{generated:,} / {used:,}",
                f"{episodes * generated / 1e6:.0f} / {episodes * used / 1e6:.0f}",
                f"{variant:.1f}",
                f"{rates.hours(parameters, episodes * budget, episodes * budget):.0f}",
                str(len(config.variants)),
                f"{study:.1f}" if study else "–",
                f"{study_most:.0f}" if study else "–",
                f"{together:.0f}",
            ]
        )
    seeds = f"One seed of everything: {total:.0f} GPU-hours; three: {3 * total:.0f}."
    return f"{markdown(lines)}\n{assumptions(rates)} {seeds}\n"


def assumptions(rates: Rates) -> str:
    sampled = f"{rates.sampled:,.0f}"
    trained = f"{rates.trained:,.0f}"
    peak = f"{PEAK / 1e12:.0f} TFLOP/s"
    return (
        f"GPU-hours of a variant with {LARGEST / 1e9:.0f} B parameters = (sampled / {sampled} + trained / {trained}) / "
        f"3,600: a GPU is assumed to sample {sampled} tokens a second, and to train on {trained}, which are "
        f"{rates.utilisation:.0%} of {peak} at {OPERATIONS} operations per weight and token. *At most*: every episode "
        "generates its whole budget."
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampled-per-second", type=float, default=5000, help="of a model with 4 B parameters")
    parser.add_argument("--utilisation", type=float, default=0.3, help="share of the peak that training reaches")
    chosen = parser.parse_args()
    print(table(Rates(chosen.sampled_per_second, chosen.utilisation)), end="")
