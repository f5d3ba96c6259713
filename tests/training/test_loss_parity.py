"""The learner's loss against TRL's on fixed inputs, and against a plain line of PyTorch.

Expected numbers: TRL 1.16.0's `GRPOTrainer._compute_loss` on the inputs below, (loss, sum of |d loss / d log-prob|),
for `epsilon=0.2, epsilon_high=0.2, max_completion_length=8` and 16 items in the batch unless a column says otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from records import TASK, agent, group, turn

from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.record import EpisodeRecord
from selfcest_env.types import ROOT, Limits, TurnKey
from selfcest_training.credit import Credit
from selfcest_training.learner.batch import Sample, TokenBatch, build_samples
from selfcest_training.learner.options import (
    Denominator,
    Importance,
    ImportanceLevel,
    LossConfig,
    LossTermConfig,
    OptimizerConfig,
)
from selfcest_training.learner.update import Learner

LOGPROBS = ((-1, -0.5, -2, -0.1, -0.3), (-0.2, -1.5, -0.7, -0.9), (-3, -0.4), (-0.6, -0.6, -0.6, -1.2, -0.8))
OLD = ((-1.1, -0.9, -1.7, -0.1, -0.4), (-0.5, -1.2, -0.7, -1.0), (-2.5, -0.5), (-0.6, -0.9, -0.2, -1.2, -1.0))
ADVANTAGES = (1.2, -0.7, 0.4, -0.9)
RATIOS = (1.05, 0.9, 1.0, 1.3)  # importance weights of the four sequences
REFERENCE_GAP = -0.05  # reference log-prob - old log-prob


@dataclass(frozen=True)
class Column:
    """A setting of both sides."""

    options: dict[str, Any] = field(default_factory=dict)
    beta: float = 0.0
    importance: ImportanceLevel = ImportanceLevel.NONE
    accumulated: bool = False  # the batch is half of a step's: 40 items in all


COLUMNS = {
    "plain": Column(),
    "beta": Column(beta=0.04),
    "weights by token": Column(importance=ImportanceLevel.TOKEN),
    "weights by sequence": Column(importance=ImportanceLevel.SEQUENCE),
    "delta": Column({"delta": 1.3}),
    "higher": Column({"clip_high": 0.28}),
    "sequence": Column({"level": "sequence"}),
    "accumulated": Column(accumulated=True),
}

# TRL's denominators in ours: (denominator, constant, constant when accumulated).
FORMS = {
    "grpo": (Denominator.EPISODE_MEAN, 1.0, 1.0),  # 4 x a sequence's tokens
    "bnpo": (Denominator.CONSTANT, 16 / 4, 2 * 16 / 4),  # the batch's tokens
    "dr_grpo": (Denominator.CONSTANT, 8.0, 2 * 8.0),  # 4 x max_completion_length
    "dapo": (Denominator.CONSTANT, 16 / 4, 40 / 4),  # the step's tokens
}

WEIGHED = {
    "grpo": (0.07165238, 0.73796880),
    "bnpo": (0.11186890, 0.82426172),
    "dr_grpo": (0.05593445, 0.41213086),
    "dapo": (0.11186890, 0.82426172),
}
TRL = {
    "plain": {
        "grpo": (0.03320959, 0.67951906),
        "bnpo": (0.05916143, 0.74742055),
        "dr_grpo": (0.02958071, 0.37371027),
        "dapo": (0.05916143, 0.74742055),
    },
    "beta": {
        "grpo": (0.03470495, 0.68628693),
        "bnpo": (0.06048390, 0.75379211),
        "dr_grpo": (0.03024195, 0.37689605),
        "dapo": (0.06048390, 0.75379211),
    },
    "weights by token": WEIGHED,
    "weights by sequence": WEIGHED,
    "delta": {
        "grpo": (0.02878463, 0.55971903),
        "bnpo": (0.05417555, 0.61243474),
        "dr_grpo": (0.02708778, 0.30621737),
        "dapo": (0.05417555, 0.61243474),
    },
    "higher": {
        "grpo": (0.02840960, 0.67951906),
        "bnpo": (0.05316143, 0.74742055),
        "dr_grpo": (0.02658072, 0.37371027),
        "dapo": (0.05316143, 0.74742055),
    },
    "sequence": {
        "grpo": (0.00855137, 0.80939960),
        "bnpo": (0.02723648, 0.90548706),
        "dr_grpo": (0.01361824, 0.45274353),
        "dapo": (0.02723648, 0.90548706),
    },
    "accumulated": {
        "grpo": (0.01660480, 0.33975953),
        "bnpo": (0.02958071, 0.37371027),
        "dr_grpo": (0.01479036, 0.18685514),
        "dapo": (0.02366457, 0.29896823),
    },
}


class TableLearner(Learner):
    """A learner whose log-probs are free numbers: a row per episode, named by its index."""

    def __init__(self, table: torch.Tensor, micro_batch_tokens: int) -> None:
        model = build_tiny(TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), seed=0)
        super().__init__(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=micro_batch_tokens, reference=model)
        self.table = table

    def logprobs(self, batch: TokenBatch) -> torch.Tensor:
        return self._of_rows(self.table, batch)

    def _reference_logprobs(self, batch: TokenBatch) -> torch.Tensor:
        return self._of_rows(padded(OLD) + REFERENCE_GAP, batch)

    def _of_rows(self, table: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
        rows = table[[int(sample.episode_id) for sample in batch.samples]]
        return torch.nn.functional.pad(rows, (1, 0))[:, : batch.token_ids.shape[1]]


def padded(rows: tuple[tuple[float, ...], ...]) -> torch.Tensor:
    """[4, 5] float64, 0 after a row's end."""
    return torch.tensor([[*row, *(0.0,) * (5 - len(row))] for row in rows], dtype=torch.float64)


def samples_of(form: str, column: Column) -> list[Sample]:
    """One episode per row, a prompt of one id each; weights by the batch builder."""
    episodes = [
        EpisodeRecord(str(i), TASK, Limits(), 0, (agent(ROOT, turn((1,), tuple(range(2, 2 + len(row))))),), {"c": 0.0})
        for i, row in enumerate(OLD)
    ]
    credit = Credit({TurnKey(str(i), ROOT, 0): advantage for i, advantage in enumerate(ADVANTAGES)})
    denominator, constant, accumulated = FORMS[form]
    samples = build_samples(
        [group(*episodes)], [credit], denominator=denominator, constant=accumulated if column.accumulated else constant
    )
    halved = 0.5 if column.accumulated and denominator is Denominator.EPISODE_MEAN else 1.0
    found = []
    for sample, old, advantage, ratio in zip(samples, OLD, ADVANTAGES, RATIOS, strict=True):
        apart = {"none": 0.0, "token": math.log(ratio), "sequence": math.log(ratio) / len(old)}[column.importance]
        old_logprobs = np.array([0.0, *old])
        arrays = {
            "old_logprobs": old_logprobs,
            "behavior_logprobs": np.where(sample.loss_mask, old_logprobs - apart, 0),
        }
        advantages = np.where(sample.loss_mask, advantage, 0)
        found.append(replace(sample, weight=sample.weight * halved, advantages=advantages, **arrays))
    return found


def loss_of(column: Column) -> LossConfig:
    terms = {"kl": LossTermConfig(column.beta)} if column.beta else {}
    return LossConfig("clipped", column.options, Importance(column.importance), terms)


def step(samples: list[Sample], loss: LossConfig, micro_batch_tokens: int) -> tuple[float, torch.Tensor]:
    """Loss and [4, 5] gradient of one `policy_step`."""
    table = padded(LOGPROBS).requires_grad_()
    metrics = TableLearner(table, micro_batch_tokens).policy_step(samples, loss)
    assert table.grad is not None
    return metrics.loss, table.grad


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("micro_batch_tokens", [1, 12, 1000])
def test_value_and_gradient_are_those_of_trl(form: str, name: str, micro_batch_tokens: int) -> None:
    column = COLUMNS[name]
    loss = loss_of(column)
    value, gradient = step(samples_of(form, column), loss, micro_batch_tokens)
    assert (value, float(gradient.abs().sum())) == pytest.approx(TRL[name][form], abs=1e-6)


def test_cispo_is_that_of_trl() -> None:
    # What TRL calls epsilon_high = 0.2 is the cap itself: 1 + epsilon_high = 0.2 here.
    loss = LossConfig("cispo", {"epsilon_high": -0.8})
    value, gradient = step(samples_of("dapo", Column()), loss, 1000)
    assert (value, float(gradient.abs().sum())) == pytest.approx((0.00387501, 0.17625001), abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLUMNS)
def test_every_entry_of_the_gradient_is_that_of_a_plain_line(form: str, name: str) -> None:
    column = COLUMNS[name]
    rows = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in LOGPROBS]
    high, delta = column.options.get("clip_high", 0.2), column.options.get("delta", math.inf)
    weight_of = {
        "grpo": lambda n: 1 / (4 * n) / (1 + column.accumulated),
        "bnpo": lambda _: 1 / 16 / (1 + column.accumulated),
        "dr_grpo": lambda _: 1 / 32 / (1 + column.accumulated),
        "dapo": lambda _: 1 / (40 if column.accumulated else 16),
    }[form]
    total = torch.zeros((), dtype=torch.float64)
    for row, old, advantage, weight in zip(rows, OLD, ADVANTAGES, RATIOS, strict=True):
        then = torch.tensor(old, dtype=torch.float64)
        rho = torch.exp((row - then).mean() if column.options.get("level") else row - then)
        per_token = -torch.minimum(rho.clamp(max=delta) * advantage, rho.clamp(0.8, 1 + high) * advantage)
        k3 = torch.exp(then + REFERENCE_GAP - row) - (then + REFERENCE_GAP - row) - 1
        weighed = per_token * (1.0 if column.importance is ImportanceLevel.NONE else weight) + column.beta * k3
        total = total + weighed.sum() * weight_of(len(old))
    total.backward()
    loss = loss_of(column)
    value, gradient = step(samples_of(form, column), loss, 1000)
    assert value == pytest.approx(total.item(), abs=1e-8)
    for i, row in enumerate(rows):
        assert row.grad is not None
        torch.testing.assert_close(gradient[i, : len(row)], row.grad, rtol=0, atol=1e-8)
