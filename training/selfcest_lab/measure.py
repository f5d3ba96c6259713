"""Runs of the laboratory: each scheme is measured in each game and compared with its promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import Configured, PlugIn
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import AtLeast, Checked, OneOf
from selfcest_lab.estimate import Estimates, learn, sample_groups
from selfcest_lab.exact import SolvedGame, solve
from selfcest_lab.expectation import expected_gradient
from selfcest_lab.games import GAMES
from selfcest_lab.judge import (
    MIN_EXACT_EFFECT,
    Evidence,
    combine_evidence,
    find_broken,
    is_alarm,
    joint_p_value,
    judge_exact,
    judge_samples,
)
from selfcest_lab.tabular import Floats
from selfcest_training.credit import CreditAssigner, Promise

_NUM_BATCHES = 20  # batches of groups for the intervals of variances
_T95 = 2.093  # two-sided 95 % quantile of Student's t with _NUM_BATCHES - 1 = 19 degrees of freedom
_NUM_BOOTSTRAPS = 400
_BLIND_ERRORS = 3.0  # standard errors by which a sampled estimate must point away from the gradient to be called blind


@dataclass(frozen=True)
class LabConfig(Checked):
    """Configuration of a run of the laboratory.

    Attributes:
        games: names of games (default: all).
        group_size: episodes per group, at least 2, in games that do not set their own.
        num_groups: sampled groups per scheme and game.
        seed: random seed. All schemes are compared on the same episodes.
    """

    games: tuple[Annotated[str, OneOf(*GAMES)], ...] = tuple(GAMES)
    group_size: Annotated[int, AtLeast(2), "the episodes of a group are compared with one another"] = 2
    num_groups: Annotated[int, AtLeast(2 * _NUM_BATCHES), "the intervals of variances need so many"] = 1000
    seed: int = 0


_DEFAULT = LabConfig()


@dataclass(frozen=True)
class MeasuredValue:
    """A number with the half width of its 95 % interval, which is 0 if the number is exact."""

    value: float
    half_width: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.3g}" + (f" ± {self.half_width:.2g}" if self.half_width else "")


@dataclass(frozen=True)
class Measurement:
    """One cell of a run: a scheme in a game.

    Lengths are relative to the length of the exact gradient, and variances to its square.

    Attributes:
        scheme: name of the scheme with the options that differ from their defaults.
        game: name of the game.
        promise: the scheme's promise.
        exact: whether bias and cosine come from the exact expectation.
        bias: length of E[estimate] - gradient.
        cosine: cosine between E[estimate] and the gradient.
        scale: length of E[estimate] along the gradient.
        variance: trace of the covariance of one group's estimate.
        clone_variance: the same for the clones' parameters only, relative to the clones' part of the gradient.
        sampled_tokens: tokens generated per group in its episodes.
        replayed_tokens: tokens generated per group in its replays.
        bias_shares: share of the squared bias by location (role, depth and turn), largest first. Empty if there is no
            bias, or none beyond its interval.
        blind: cosine between E[estimate] and the gradient at each location where the gradient is not 0 and a step along
            E[estimate] does not raise the return in first order: 0 or less.
        evidence: evidence against the promise, `None` if the scheme promises nothing.
    """

    scheme: str
    game: str
    promise: Promise
    exact: bool
    bias: MeasuredValue
    cosine: float
    scale: float
    variance: MeasuredValue
    clone_variance: MeasuredValue
    sampled_tokens: float
    replayed_tokens: float
    bias_shares: Mapping[str, float]
    blind: Mapping[str, float]
    evidence: Evidence | None

    @property
    def tokens(self) -> float:
        """Tokens generated per group."""
        return self.sampled_tokens + self.replayed_tokens

    @property
    def variance_cost(self) -> float:
        """Variance x tokens, to which the cost of a given precision is proportional."""
        return self.variance.value * self.tokens

    @property
    def clone_variance_cost(self) -> float:
        """Variance x tokens for the clones' parameters."""
        return self.clone_variance.value * self.tokens


@dataclass(frozen=True)
class LabReport:
    """All cells of a run, and the verdict on them.

    Attributes:
        config: the configuration.
        cells: the measurements, by game and then by scheme.
        broken: the cells whose promise is broken.
        p_value: p-value of the joint test over all sampled cells.
    """

    config: LabConfig
    cells: tuple[Measurement, ...]
    broken: tuple[Measurement, ...]
    p_value: float

    @classmethod
    def of(cls, config: LabConfig, cells: Sequence[Measurement]) -> LabReport:
        """Return the report on these cells, with the verdict."""
        judged = [cell for cell in cells if cell.evidence is not None]
        evidence = [cell.evidence for cell in judged if cell.evidence is not None]
        refuted = tuple(judged[index] for index in find_broken(evidence))
        return cls(config, tuple(cells), refuted, joint_p_value(evidence))


def run_lab(
    assigners: Sequence[CreditAssigner],
    config: LabConfig = _DEFAULT,
    on_cell: Callable[[str, str], None] = lambda game, scheme: None,
) -> LabReport:
    """Measure every scheme in every game.

    Args:
        assigners: the schemes.
        config: games, sizes and seed.
        on_cell: called with game and scheme before each measurement.

    Raises:
        ConfigError: two schemes have the same name in the tables.
    """
    labels = list(map(label, assigners))
    for name in labels:
        if labels.count(name) > 1:
            raise ConfigError(
                f"{labels.count(name)} schemes are called {name!r} in the tables; expected each once: give the options "
                "of your class as fields of a frozen dataclass, or measure them in separate runs"
            )
    cells = []
    for name in config.games:
        solved = solve(GAMES[name])
        for assigner in assigners:
            on_cell(name, label(assigner))
            cells.append(measure(assigner, solved, config))
    return LabReport.of(config, cells)


def measure(assigner: CreditAssigner, solved: SolvedGame, config: LabConfig) -> Measurement:
    """Measure one scheme in one game.

    Bias and cosine come from the exact expectation if the scheme can be enumerated. Variance and cost always come from
    sampled groups. A scheme that learns is measured as it stands after as many groups of other seeds.
    """
    gradient = solved.gradient
    length = float(np.linalg.norm(gradient))
    is_clone = solved.parameters.is_clone
    clone_gradient = gradient[is_clone]
    assigner = learn(
        assigner, solved, group_size=_group_size(solved, config), num_groups=config.num_groups, seed=config.seed
    )
    sampled = _sample(assigner, solved, config, config.seed)
    exact_mean = expected_gradient(assigner, solved, group_size=_group_size(solved, config))
    if exact_mean is None:
        mean = sampled.gradients.mean(axis=0)
        half_width = _error_bound(sampled.gradients, config.seed) / length
    else:
        mean = exact_mean
        half_width = 0.0
    bias = MeasuredValue(float(np.linalg.norm(mean - gradient)) / length, half_width)
    is_biased = bias.value > max(bias.half_width, MIN_EXACT_EFFECT)
    return Measurement(
        scheme=label(assigner),
        game=solved.game.name,
        promise=assigner.promise,
        exact=exact_mean is not None,
        bias=bias,
        # An estimate of exactly zero has cosine 0, not nan.
        cosine=float(mean @ gradient) / max(float(np.linalg.norm(mean)) * length, 1e-300),
        scale=float(mean @ gradient) / length**2,
        variance=_variance(sampled.gradients, length**2),
        clone_variance=_variance(sampled.gradients[:, is_clone], float(clone_gradient @ clone_gradient)),
        sampled_tokens=sampled.sampled_tokens,
        replayed_tokens=sampled.replayed_tokens,
        bias_shares=_bias_shares(mean - gradient, solved) if is_biased else {},
        blind=find_blind(mean, sampled.gradients if exact_mean is None else None, solved),
        evidence=_judge(assigner, sampled, exact_mean, solved, config),
    )


def _sample(assigner: CreditAssigner, solved: SolvedGame, config: LabConfig, seed: int) -> Estimates:
    size = _group_size(solved, config)
    return sample_groups(assigner, solved, group_size=size, num_groups=config.num_groups, seed=seed)


def _group_size(solved: SolvedGame, config: LabConfig) -> int:
    return solved.game.group_size or config.group_size


def _bias_shares(bias: Floats, solved: SolvedGame) -> dict[str, float]:
    """Return the share of the squared length of the bias, [D], at each location, largest first."""
    squares: dict[str, float] = {}
    for location, value in zip(solved.parameters.locations, bias, strict=True):
        squares[location] = squares.get(location, 0.0) + float(value) ** 2
    total = sum(squares.values())
    largest_first = sorted(squares.items(), key=lambda pair: -pair[1])
    return {location: square / total for location, square in largest_first}


def find_blind(mean: Floats, gradients: Floats | None, solved: SolvedGame) -> dict[str, float]:
    """Return the cosine between the estimate's mean and the gradient at each location where it is shown to be <= 0.

    Args:
        mean: [D] the expectation of the estimate, or the mean of `gradients`.
        gradients: [G, D] the sampled estimates; `None` if the expectation is exact.
        solved: the game.
    """
    length = float(np.linalg.norm(solved.gradient))
    locations = np.array(solved.parameters.locations)
    blind: dict[str, float] = {}
    for location in dict.fromkeys(solved.parameters.locations):
        is_here = locations == location
        gradient = solved.gradient[is_here]
        length_here = float(np.linalg.norm(gradient))
        if length_here < MIN_EXACT_EFFECT * length:
            continue
        along = float(mean[is_here] @ gradient) / length_here
        error = 0.0
        if gradients is not None:
            error = float((gradients[:, is_here] @ gradient).std(ddof=1)) / length_here / math.sqrt(len(gradients))
        # Below this limit the mean is 0 up to rounding.
        if along + _BLIND_ERRORS * error < MIN_EXACT_EFFECT * length_here:
            size = float(np.linalg.norm(mean[is_here]))
            blind[location] = along / size if size > MIN_EXACT_EFFECT * length_here else 0.0
    return blind


def label(assigner: CreditAssigner) -> str:
    """Return a scheme's name with the options that differ from their defaults: `gated(scheme=coma(samples=4))`."""
    options = assigner.options if isinstance(assigner, Configured) else assigner
    changed = {}
    for name, spec in getattr(type(options), "__dataclass_fields__", {}).items():
        value = getattr(options, name)
        if value != spec.default:
            changed[name] = value
    return _format_call(assigner.name, changed)


def _format_call(name: str, options: Mapping[str, Any]) -> str:
    arguments = []
    for option, value in options.items():
        text = _format_call(value.name, value.options) if isinstance(value, PlugIn) else value
        arguments.append(f"{option}={text}")
    return f"{name}({', '.join(arguments)})" if arguments else name


def _judge(
    assigner: CreditAssigner, sampled: Estimates, exact_mean: Floats | None, solved: SolvedGame, config: LabConfig
) -> Evidence | None:
    """Return the evidence against the scheme's promise."""
    promise = assigner.promise
    if promise is Promise.BIASED:
        return None
    if exact_mean is not None:
        return judge_exact(promise, exact_mean, solved.gradient)
    first = judge_samples(promise, sampled.gradients, solved, sampled.reference)
    if not is_alarm(first):
        return first
    # Where a branch is rare, a sample that happens to miss it understates its own error. So an alarm is repeated on new
    # groups, and the weaker evidence counts.
    repeated = _sample(assigner, solved, config, stream_seed("confirm", config.seed))
    return combine_evidence(first, judge_samples(promise, repeated.gradients, solved, repeated.reference))


def _variance(gradients: Floats, unit: float) -> MeasuredValue:
    """Return the trace of the covariance of [G, D] estimates over `unit`, with an interval by batch means."""
    squares = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1) / unit
    trace = float(squares.sum()) / (len(squares) - 1)
    batch_means = [batch.mean() for batch in np.array_split(squares, _NUM_BATCHES)]
    return MeasuredValue(trace, _T95 * float(np.std(batch_means, ddof=1)) / math.sqrt(_NUM_BATCHES))


def _error_bound(gradients: Floats, seed: int) -> float:
    """Return a 95 % bound on the length of mean - expectation, by the bootstrap over groups.

    By the triangle inequality it also bounds the error of the bias's length.
    """
    rng = np.random.default_rng(seed)
    centred = gradients - gradients.mean(axis=0)
    weights = rng.multinomial(len(centred), np.full(len(centred), 1 / len(centred)), size=_NUM_BOOTSTRAPS)
    lengths = np.linalg.norm(weights @ centred / len(centred), axis=1)
    return float(np.quantile(lengths, 0.95))
