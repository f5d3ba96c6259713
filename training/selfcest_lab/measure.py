"""The laboratory: every scheme in every game, measured and held to what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.plugin import Configured, PlugIn
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import AtLeast, Checked, OneOf
from selfcest_lab.estimate import Estimates, sample_groups
from selfcest_lab.exact import Solved, solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.games import GAMES
from selfcest_lab.judge import (
    MIN_EXACT_EFFECT,
    Evidence,
    broken,
    exact_evidence,
    is_alarm,
    joint_p_value,
    sampled_evidence,
    weaker,
)
from selfcest_lab.tabular import Floats
from selfcest_training.credit import CreditAssigner, Promise

_NUM_BATCHES = 20  # of groups, for the intervals of variances
_T95 = 2.093  # two-sided 95 % quantile of Student's t with 19 degrees of freedom
_NUM_BOOTSTRAPS = 400


@dataclass(frozen=True)
class LabConfig(Checked):
    """What a run of the laboratory does.

    Attributes:
        games: which; all by default.
        group_size: episodes of a group, at least 2, in games that do not name their own.
        num_groups: sampled groups per scheme and game.
        seed: of all sampling. Schemes are compared on the same episodes.
    """

    games: tuple[Annotated[str, OneOf(*GAMES)], ...] = tuple(GAMES)
    group_size: Annotated[int, AtLeast(2), "they are compared with one another"] = 2
    num_groups: Annotated[int, AtLeast(2 * _NUM_BATCHES), "for the intervals"] = 1000
    seed: int = 0


_DEFAULT = LabConfig()


@dataclass(frozen=True)
class Value:
    """A number with the half width of its 95 % interval; 0 where it is exact."""

    value: float
    half: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.3g}" + (f" ± {self.half:.2g}" if self.half else "")


@dataclass(frozen=True)
class Measurement:
    """One scheme in one game. Lengths and variances are relative to the exact gradient's (squared) length.

    Attributes:
        scheme: its name, with the options that are not the default.
        exact: whether bias and cosine come from the exact expectation.
        bias: length of E[estimate] - gradient.
        cosine: between E[estimate] and gradient.
        variance: trace of the covariance of one group's estimate.
        clone_variance: the same for the clones' parameters alone, over the clones' own squared gradient.
        sampled_tokens, replayed_tokens: generated per group.
        where: by role, depth and turn the share of the squared bias that sits there, largest first, exact or as the
            sampled mean has it; empty where there is no bias, or none beyond its interval.
        evidence: against what the scheme promises, `None` if it promises nothing.
    """

    scheme: str
    game: str
    promise: Promise
    exact: bool
    bias: Value
    cosine: float
    variance: Value
    clone_variance: Value
    sampled_tokens: float
    replayed_tokens: float
    where: Mapping[str, float]
    evidence: Evidence | None

    @property
    def tokens(self) -> float:
        return self.sampled_tokens + self.replayed_tokens

    @property
    def variance_cost(self) -> float:
        """Variance x tokens: what a given precision costs."""
        return self.variance.value * self.tokens

    @property
    def clone_variance_cost(self) -> float:
        return self.clone_variance.value * self.tokens


@dataclass(frozen=True)
class LabReport:
    """All cells of a run and the verdict on them.

    Attributes:
        broken: the cells whose promise is broken.
        p_value: of the joint test over all sampled cells.
    """

    config: LabConfig
    cells: tuple[Measurement, ...]
    broken: tuple[Measurement, ...]
    p_value: float

    @classmethod
    def of(cls, config: LabConfig, cells: Sequence[Measurement]) -> LabReport:
        """The verdict on these cells."""
        judged = [cell for cell in cells if cell.evidence is not None]
        evidence = [cell.evidence for cell in judged if cell.evidence is not None]
        return cls(config, tuple(cells), tuple(judged[index] for index in broken(evidence)), joint_p_value(evidence))


def run_lab(
    assigners: Sequence[CreditAssigner],
    config: LabConfig = _DEFAULT,
    on_cell: Callable[[str, str], None] = lambda game, scheme: None,
) -> LabReport:
    """Measure every scheme in every game.

    Args:
        assigners: the schemes.
        on_cell: called with game and scheme as a cell begins.
    """
    cells = []
    for name in config.games:
        solved = solve(GAMES[name])
        for assigner in assigners:
            on_cell(name, label(assigner))
            cells.append(measure(assigner, solved, config))
    return LabReport.of(config, cells)


def measure(assigner: CreditAssigner, solved: Solved, config: LabConfig) -> Measurement:
    """One scheme in one game: the exact expectation where it can be had, variance and cost from sampled groups."""
    gradient, is_clone = solved.gradient, solved.parameters.is_clone
    length = float(np.linalg.norm(gradient))
    sampled = _sample(assigner, solved, config, config.seed)
    exact = expected_gradient(assigner, solved, group_size=_group_size(solved, config))
    mean = sampled.gradients.mean(axis=0) if exact is None else exact
    half = _error_length(sampled.gradients, config.seed) / length if exact is None else 0.0
    bias = Value(float(np.linalg.norm(mean - gradient)) / length, half)
    return Measurement(
        scheme=label(assigner),
        game=solved.game.name,
        promise=assigner.promise,
        exact=exact is not None,
        bias=bias,
        cosine=float(mean @ gradient) / max(float(np.linalg.norm(mean)) * length, 1e-300),
        variance=_variance(sampled.gradients, length**2),
        clone_variance=_variance(sampled.gradients[:, is_clone], float(solved.clone_gradient @ solved.clone_gradient)),
        sampled_tokens=sampled.sampled_tokens,
        replayed_tokens=sampled.replayed_tokens,
        where=_where(mean - gradient, solved) if bias.value > max(bias.half, MIN_EXACT_EFFECT) else {},
        evidence=_evidence(assigner, sampled, exact, solved, config),
    )


def _sample(assigner: CreditAssigner, solved: Solved, config: LabConfig, seed: int) -> Estimates:
    size = _group_size(solved, config)
    return sample_groups(assigner, solved, group_size=size, num_groups=config.num_groups, seed=seed)


def _group_size(solved: Solved, config: LabConfig) -> int:
    return solved.game.group_size or config.group_size


def _where(bias: Floats, solved: Solved) -> dict[str, float]:
    """Shares of the squared length by who meets the parameters."""
    squares: dict[str, float] = {}
    for place, value in zip(solved.parameters.where, bias, strict=True):
        squares[place] = squares.get(place, 0.0) + float(value) ** 2
    whole = sum(squares.values())
    return {place: square / whole for place, square in sorted(squares.items(), key=lambda pair: -pair[1])}


def label(assigner: CreditAssigner) -> str:
    """A scheme's name with its options that differ from the default, as in `gated(scheme=coma(samples=4))`."""
    options = assigner.options if isinstance(assigner, Configured) else assigner
    fields = getattr(type(options), "__dataclass_fields__", {})
    values = {name: getattr(options, name) for name in fields}
    return _called(assigner.name, {name: value for name, value in values.items() if value != fields[name].default})


def _called(name: str, options: Mapping[str, Any]) -> str:
    said = [
        f"{option}={_called(value.name, value.options) if isinstance(value, PlugIn) else value}"
        for option, value in options.items()
    ]
    return name + (f"({', '.join(said)})" if said else "")


def _evidence(
    assigner: CreditAssigner, sampled: Estimates, exact: Floats | None, solved: Solved, config: LabConfig
) -> Evidence | None:
    """What speaks against the promise. An alarm is repeated on groups of its own, and the weaker of the two counts:
    where a branch is rare, a sample that happens to miss it understates its own error."""
    promise = assigner.promise
    if promise is Promise.BIASED:
        return None
    if exact is not None:
        return exact_evidence(promise, exact, solved.gradient)
    first = sampled_evidence(promise, sampled.gradients, solved, sampled.reference)
    if not is_alarm(first):
        return first
    again = _sample(assigner, solved, config, stream_seed("confirm", config.seed))
    return weaker(first, sampled_evidence(promise, again.gradients, solved, again.reference))


def _variance(gradients: Floats, unit: float) -> Value:
    """Trace of the covariance over `unit`, with an interval from independent batches of groups."""
    squares = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1) / unit
    total = float(squares.sum()) / (len(squares) - 1)
    batches = [part.mean() for part in np.array_split(squares, _NUM_BATCHES)]
    return Value(total, _T95 * float(np.std(batches, ddof=1)) / math.sqrt(_NUM_BATCHES))


def _error_length(gradients: Floats, seed: int) -> float:
    """95 % bound on |mean - expectation|, by the bootstrap: by the triangle inequality also of the bias's length."""
    rng = np.random.default_rng(seed)
    centred = gradients - gradients.mean(axis=0)
    weights = rng.multinomial(len(centred), np.full(len(centred), 1 / len(centred)), size=_NUM_BOOTSTRAPS)
    lengths = np.linalg.norm(weights @ centred / len(centred), axis=1)
    return float(np.quantile(lengths, 0.95))
