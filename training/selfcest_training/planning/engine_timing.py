"""Times an engine on this machine, and fits the seconds that it needs for prompts and for generated tokens.

The fitted formula has six terms, none of them negative: a constant per batch, per prompt token, per pair of a prompt
token and a key that it sees, per decoding step, per row of a step, and per cached key that a step reads.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfcest_agents.engine import Completion, Engine, TokenRequest
from selfcest_env.errors import ConfigError
from selfcest_env.seeding import stream_seed
from selfcest_training.files import replace_text

Floats = npt.NDArray[np.float64]
Clock = Callable[[], float]

AT_ONCE = 16  # requests of the batches that measure throughput
MIN_ROUNDS = 3  # timed batches of each kind, after one batch for the warm-up
MAX_ROUNDS = 10
_SHORTEST = {1: 256, AT_ONCE: 64}  # tokens of the shortest prompt, by requests of a batch
_DECODED = 17  # generated tokens of the batches that time decoding
# Nearly uniform sampling, so that a sequence hardly ever ends before its limit.
_TEMPERATURE = 100.0
TERMS = (
    "per batch",
    "per prompt token",
    "per prompt token and key",
    "per decoding step",
    "per decoding step and row",
    "per decoding step and cached token",
)


@dataclass(frozen=True)
class BatchShape:
    """Requests of equal lengths that an engine gets at once.

    Attributes:
        requests: number of requests.
        prompt_tokens: tokens of each context.
        new_tokens: maximum number of generated tokens of each request.
    """

    requests: int
    prompt_tokens: int
    new_tokens: int

    @property
    def size(self) -> int:
        """Tokens of all requests, by which the shapes are ordered."""
        return self.requests * (self.prompt_tokens + self.new_tokens)


@dataclass(frozen=True)
class BatchTiming:
    """One timed batch.

    Attributes:
        shape: its requests.
        round: number of the round; round 0 is the warm-up.
        generated: generated tokens of each request. A stop token may end one early.
        seconds: wall-clock seconds from the submission to the last result.
    """

    shape: BatchShape
    round: int
    generated: tuple[int, ...]
    seconds: float


def count_terms(
    requests: Floats | int, prompt_tokens: Floats | int, new_tokens: Floats | int, max_batch_size: int
) -> Floats:
    """Count how often each of `TERMS` occurs in batches that generate all their tokens.

    Args:
        requests, prompt_tokens, new_tokens: [batches] see `BatchShape`; numbers may be fractions.
        max_batch_size: largest number of requests that the engine decodes together.

    Returns:
        [batches, 6], or [6] for numbers.
    """
    rows = requests * (new_tokens + 0.0)
    keys = rows * prompt_tokens + requests * new_tokens * (new_tokens + 1) / 2
    pairs = requests * prompt_tokens * (prompt_tokens + 1) / 2
    steps = np.ceil(np.asarray(requests) / max_batch_size) * new_tokens
    terms = np.broadcast_arrays(1.0, requests * (prompt_tokens + 0.0), pairs, steps, rows, keys)
    return np.stack(terms, axis=-1)


def _count_timing(timing: BatchTiming, max_batch_size: int) -> Floats:
    """Count the terms of a timing, whose requests may have stopped early."""
    shape = timing.shape
    terms = count_terms(shape.requests, shape.prompt_tokens, 0, max_batch_size)
    generated = np.array(timing.generated, dtype=float)
    waves = ceil(shape.requests / max_batch_size)
    terms[3:] = (
        waves * generated.max(),
        generated.sum(),
        np.sum(generated * (shape.prompt_tokens + (generated + 1) / 2)),
    )
    return terms


@dataclass(frozen=True)
class EngineTimings:
    """Timings of one engine with one model on one machine.

    Attributes:
        subject: engine, model and machine.
        max_batch_size: largest number of requests that the engine decodes together.
        timings: all timings, those of the warm-up too.
    """

    subject: Mapping[str, Any]
    max_batch_size: int
    timings: tuple[BatchTiming, ...]

    @property
    def seconds(self) -> float:
        """Seconds that the timings took."""
        return sum(timing.seconds for timing in self.timings)

    @property
    def num_rounds(self) -> int:
        """Number of rounds after the warm-up, including an unfinished one."""
        return max((timing.round for timing in self.timings), default=0)

    @cached_property
    def _relative_terms(self) -> Floats:
        """[timings, 6] terms of every timing after the warm-up, divided by its seconds."""
        return np.stack([_count_timing(t, self.max_batch_size) / t.seconds for t in self.timings if t.round])

    def fit(self) -> Floats:
        """Fit the seconds of each of `TERMS`, [6], by least squares of relative errors."""
        (fit,) = _fit(self._relative_terms, np.ones((1, len(self._relative_terms))))
        result: Floats = fit
        return result

    def resample(self, count: int, seed: int = 0) -> Floats:
        """Fit bootstrap samples, which draw the repeats of each shape with replacement. Returns [count, 6]."""
        rng = np.random.default_rng(seed)
        rows_by_shape: dict[BatchShape, list[int]] = defaultdict(list)
        for row, timing in enumerate(timing for timing in self.timings if timing.round):
            rows_by_shape[timing.shape].append(row)
        weights = np.zeros((count, len(self._relative_terms)))
        for rows in rows_by_shape.values():
            weights[:, rows] = rng.multinomial(len(rows), [1 / len(rows)] * len(rows), size=count)
        return _fit(self._relative_terms, weights)

    def relative_errors(self, fit: Floats) -> Floats:
        """Return the absolute relative error of a fit on every timing after the warm-up."""
        errors: Floats = np.abs(self._relative_terms @ fit - 1)
        return errors


def _fit(terms: Floats, weights: Floats) -> Floats:
    """Solve least squares without negative coefficients, exactly: the best of the solutions on all subsets of terms.

    Args:
        terms: [timings, 6] rows that should have the product 1 with the coefficients.
        weights: [fits, timings] how often each row counts.

    Returns:
        [fits, 6].
    """
    # Columns differ by nine orders of magnitude.
    norms = np.linalg.norm(terms, axis=0)
    scales = np.where(norms > 0, norms, 1)
    scaled = terms / scales
    gram = np.einsum("ft,ti,tj->fij", weights, scaled, scaled)
    target = weights @ scaled
    best = np.zeros(target.shape)
    lowest = np.zeros(len(target))
    for size in range(1, len(scales) + 1):
        for subset in combinations(range(len(scales)), size):
            chosen = list(subset)
            inverse = np.linalg.pinv(gram[:, chosen][:, :, chosen], hermitian=True)
            solution = np.einsum("fij,fj->fi", inverse, target[:, chosen])
            # The squared error of a least-squares solution, without its constant.
            error = -np.sum(solution * target[:, chosen], axis=1)
            is_better = (solution >= 0).all(axis=1) & (error < lowest - 1e-12)
            lowest[is_better] = error[is_better]
            best[is_better] = 0
            best[np.ix_(is_better, chosen)] = solution[is_better]
    return best / scales


class EngineTimer:
    """Times an engine until a budget of seconds is used, and stores every timing at once.

    Round 0 warms up and decides how long the prompts get: a longer shape is added while four rounds of all shapes fit
    the budget. An interrupted run resumes from the timings of its file.

    Args:
        engine: engine to time; nothing is pending.
        vocab_size: number of ids, of which contexts are drawn at random.
        max_positions: maximum number of ids of a context, including the generated ones.
        max_batch_size: largest number of requests that the engine decodes together.
        clock: returns seconds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        vocab_size: int,
        max_positions: int,
        max_batch_size: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self.max_positions = max_positions
        self._max_batch_size = max_batch_size
        self._clock = clock
        self._is_warm = False

    def run(
        self,
        budget_seconds: float,
        stored: EngineTimings,
        on_timing: Callable[[EngineTimings], None],
    ) -> EngineTimings:
        """Add timings until the budget is used or every shape has `MAX_ROUNDS`.

        Args:
            budget_seconds: seconds of all timings, including the stored ones.
            stored: timings of earlier runs.
            on_timing: called after each timing with all of them.

        Raises:
            ConfigError: the budget is too short for enough shapes, or the engine cannot be timed.
        """
        timings = stored
        shapes = self._list_shapes()
        warm: list[BatchTiming] = [timing for timing in timings.timings if not timing.round]
        # The warm-up ends where the next round has begun.
        while not timings.num_rounds and len(warm) < len(shapes):
            if warm and not self._has_time(shapes[len(warm)], warm, budget_seconds):
                break
            timings = self._add(timings, shapes[len(warm)], 0, on_timing)
            warm.append(timings.timings[-1])
        shapes = shapes[: len(warm)]
        _check_enough(shapes, budget_seconds)
        round_seconds = sum(timing.seconds for timing in warm)
        for number in range(1, MAX_ROUNDS + 1):
            done = {timing.shape for timing in timings.timings if timing.round == number}
            if not done and number > MIN_ROUNDS and timings.seconds + round_seconds > budget_seconds:
                break
            for shape in shapes:
                if shape not in done:
                    timings = self._add(timings, shape, number, on_timing)
        return timings

    def time_batch(self, shape: BatchShape, round_number: int) -> BatchTiming:
        """Time one batch of random ids that no batch of another shape or round has."""
        seed = stream_seed("timing", round_number, shape.requests, shape.prompt_tokens, shape.new_tokens)
        rng = np.random.default_rng(seed)
        requests = []
        for index in range(shape.requests):
            ids = rng.integers(self._vocab_size, size=shape.prompt_tokens)
            key = f"r{round_number}/{shape.prompt_tokens}/{shape.new_tokens}/{index}"
            context_ids = tuple(ids.tolist())
            requests.append(TokenRequest(key, context_ids, shape.new_tokens, round_number + index, _TEMPERATURE))
        start = self._clock()
        self._engine.submit(requests)
        completions: list[Completion] = []
        while self._engine.pending:
            for result in self._engine.poll():
                if not isinstance(result, Completion):
                    raise ConfigError(
                        f"{type(self._engine).__name__} failed at {result.key}: {result.error}; expected an engine "
                        "that answers every request, since a failure has no time"
                    )
                completions.append(result)
        seconds = self._clock() - start
        if seconds <= 0 or len(completions) != len(requests):
            raise ConfigError(
                f"{type(self._engine).__name__} finished {len(completions)} of {len(requests)} requests in {seconds:g} "
                "seconds; expected an engine that computes tokens, whose batches take time"
            )
        generated = tuple(len(completion.token_ids) for completion in completions)
        return BatchTiming(shape, round_number, generated, seconds)

    def _add(
        self, timings: EngineTimings, shape: BatchShape, number: int, on_timing: Callable[[EngineTimings], None]
    ) -> EngineTimings:
        if not self._is_warm:
            # The first batches of a process are slow, and so is the growth of the cache to its longest context.
            stored_shapes = [timing.shape for timing in timings.timings]
            self.time_batch(max([shape, *stored_shapes], key=lambda shape: shape.size), MAX_ROUNDS + 1)
            self._is_warm = True
        timing = self.time_batch(shape, number)
        timings = EngineTimings(timings.subject, timings.max_batch_size, (*timings.timings, timing))
        on_timing(timings)
        return timings

    def _list_shapes(self) -> list[BatchShape]:
        """Return all shapes, the smallest first: one request and many, with one new token and with more."""
        shapes = []
        for requests, prompt_tokens in _SHORTEST.items():
            while prompt_tokens + _DECODED <= self.max_positions:
                shapes += [BatchShape(requests, prompt_tokens, 1), BatchShape(requests, prompt_tokens, _DECODED)]
                prompt_tokens *= 2
        return sorted(shapes, key=lambda shape: shape.size)

    @staticmethod
    def _has_time(shape: BatchShape, warm: Sequence[BatchTiming], budget_seconds: float) -> bool:
        similar = [t for t in warm if (t.shape.requests, t.shape.new_tokens) == (shape.requests, shape.new_tokens)]
        last = (similar or warm)[-1]
        # Between a linear and a quadratic growth.
        expected: float = last.seconds * (shape.size / last.shape.size) ** 1.5
        spent = sum(timing.seconds for timing in warm)
        return (1 + MIN_ROUNDS) * (spent + expected) <= budget_seconds


def _check_enough(shapes: Sequence[BatchShape], budget_seconds: float) -> None:
    """Raise `ConfigError` if the shapes cannot tell the six terms apart."""
    lengths = {shape.prompt_tokens for shape in shapes if shape.requests == 1}
    lengths_at_once = {shape.prompt_tokens for shape in shapes if shape.requests > 1}
    if len(lengths) < 3 or len(lengths_at_once) < 2:
        raise ConfigError(
            f"{budget_seconds / 60:g} minutes or the model's window suffice for {len(lengths)} lengths of one request "
            f"and {len(lengths_at_once)} of {AT_ONCE}; expected at least 3 and 2: raise --minutes, or use a model with "
            "a longer window"
        )


# The file of timings


def write_timings(file: Path, timings: EngineTimings) -> None:
    """Write a file for `read_timings`."""
    lines = [json.dumps({**timings.subject, "max_batch_size": timings.max_batch_size})]
    lines += [json.dumps(asdict(timing)) for timing in timings.timings]
    replace_text(file, "\n".join(lines) + "\n")


def read_timings(file: Path, subject: Mapping[str, Any], max_batch_size: int) -> EngineTimings:
    """Read a file of timings, or return none if there is no file.

    Args:
        file: a JSON-lines file.
        subject: engine, model and machine that the timings must be of.
        max_batch_size: see `EngineTimings`.

    Raises:
        ConfigError: the file has timings of something else, or no timings.
    """
    if not file.exists():
        return EngineTimings(subject, max_batch_size, ())
    try:
        first, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        timings = [
            BatchTiming(
                BatchShape(**line["shape"]), int(line["round"]), tuple(line["generated"]), float(line["seconds"])
            )
            for line in lines
        ]
        if not isinstance(first, dict):
            raise TypeError("the first line is no mapping")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error!r}; expected a file that --calibrate wrote; give another name"
        ) from error
    expected = {**subject, "max_batch_size": max_batch_size}
    if first != expected:
        different = sorted(key for key in first.keys() | expected.keys() if first.get(key) != expected.get(key))
        key = different[0]
        raise ConfigError(
            f"{file} has timings with {key} = {first.get(key)!r}, and here it is {expected.get(key)!r}; give another "
            "file name to time this one"
        )
    return EngineTimings(subject, max_batch_size, tuple(timings))
