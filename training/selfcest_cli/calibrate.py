"""`selfcest plan --calibrate`: from which length of a text on delegation is worth its cost on this machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count, groupby, pairwise
from math import ceil, inf, log
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from selfcest_agents.language import language_of
from selfcest_agents.samplers import make_sampler
from selfcest_env.errors import ConfigError
from selfcest_env.stored import to_stored
from selfcest_eval.play.model_costs import make_shape
from selfcest_training.config import RunConfig
from selfcest_training.files import check_output_file
from selfcest_training.planning.crossing import (
    DELEGATE,
    FULL_READER,
    LONGEST,
    MEMORY,
    STRATEGIES,
    Crossing,
    ForwardFlops,
    TextLengths,
    count_flops,
    count_strategy_terms,
    count_tokens,
    find_crossing,
    find_crossing_seconds,
    find_text_lengths,
    list_batches,
    make_text_lengths,
)
from selfcest_training.planning.engine_timing import (
    AT_ONCE,
    MAX_ROUNDS,
    MIN_ROUNDS,
    TERMS,
    BatchShape,
    Clock,
    EngineTimer,
    EngineTimings,
    Floats,
    read_timings,
    write_timings,
)
from selfcest_training.planning.memory import get_max_batch_size
from selfcest_training.planning.shapes import ModelShape, get_model_shape
from selfcest_training.printing import print_text

RESUME_HINT = "the same command continues with the timings of the file"
_SAMPLES = 200  # of the bootstrap
_CONFIDENCE = 0.95
_TABLE_LENGTHS = tuple(1024 * 2**power for power in range(8))


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of the command.

    Attributes:
        file: JSON-lines file of timings, which is written or continued.
        minutes: minutes of all timings.
        part_tokens: tokens of a part of a text; `None` for the default.
        episodes: a run's episodes.jsonl, for the lengths of turns.
        measure: whether strategies are also played at two lengths around the crossing.
    """

    file: Path
    minutes: float
    part_tokens: int | None
    episodes: Path | None
    measure: bool

    def __post_init__(self) -> None:
        if not 0 < self.minutes < inf:
            raise ConfigError(f"--minutes is {self.minutes:g}; expected minutes of timing, as in 10")
        if self.part_tokens is not None and self.part_tokens < 8:
            raise ConfigError(f"--part-tokens is {self.part_tokens}; expected at least 8 tokens, as in 512")


def run_calibration(
    config: RunConfig, options: CalibrationOptions, console: Console, clock: Clock = time.perf_counter
) -> None:
    """Time the engine of a run, and print from which length of a text on delegation costs less.

    Args:
        config: the run's config.
        options: options of the command.
        console: console to print to.
        clock: returns seconds.

    Raises:
        ConfigError: see `calibrate`.
    """
    with calibrate(config, options, console, clock) as calibration:
        for line in format_calibration(calibration):
            print_text(console, line)
        if options.measure:
            lengths = {at_once: _choose_lengths(calibration, at_once) for at_once in (1, AT_ONCE)}
            seconds = 60 * options.minutes
            plays = measure(calibration, (FULL_READER, DELEGATE), lengths, seconds, seconds)
            for line in _format_plays(calibration, plays):
                print_text(console, line)


@contextmanager
def calibrate(
    config: RunConfig, options: CalibrationOptions, console: Console, clock: Clock = time.perf_counter
) -> Iterator[Calibration]:
    """Time the engine of a run, which stays open until the context ends.

    Args:
        config: the run's config.
        options: options of the command.
        console: shows the progress.
        clock: returns seconds.

    Raises:
        ConfigError: the engine cannot be timed, the file has timings of another engine, or the time is too short.
    """
    import torch

    torch.set_num_threads(config.threads)
    check_output_file("--calibrate", options.file)
    language = language_of(config.model)
    lengths = find_text_lengths(language, config.limits, options.part_tokens, options.episodes)
    max_batch_size = get_max_batch_size(config)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    subject = {
        "model": to_stored(config.model),
        "sampler": to_stored(config.sampler),
        "threads": config.threads,
        "machine": ", ".join([f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs", *gpus]),
    }
    stored = read_timings(options.file, subject, max_batch_size)
    spec = make_sampler(config.sampler.name, config.sampler.options)
    shape = get_model_shape(config.model)
    with closing(spec.start(language, None)) as started:
        timer = EngineTimer(
            started.engine,
            vocab_size=int(shape.config.vocab_size),
            max_positions=spec.max_positions or int(shape.config.max_position_embeddings),
            max_batch_size=max_batch_size,
            clock=clock,
        )
        timings = _time_engine(timer, stored, options, console)
        yield Calibration(timer, timings, lengths, _find_flops(shape))


def _time_engine(
    timer: EngineTimer, stored: EngineTimings, options: CalibrationOptions, console: Console
) -> EngineTimings:
    budget = 60 * options.minutes
    columns = (TextColumn("timing"), BarColumn(bar_width=24), TextColumn("{task.fields[line]}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=budget, line="")

        def store(timings: EngineTimings) -> None:
            write_timings(options.file, timings)
            last = timings.timings[-1]
            line = f"round {last.round}, {last.shape.requests} x {last.shape.prompt_tokens} tokens"
            progress.update(bar, completed=timings.seconds, line=f"{timings.seconds:.0f} of {budget:.0f} s, {line}")

        try:
            return timer.run(budget, stored, store)
        except KeyboardInterrupt:
            print_text(console, f"interrupted; {RESUME_HINT} {options.file}")
            raise


def _find_flops(shape: ModelShape) -> ForwardFlops | str:
    """Return the formula of the model's operations, or the reason why there is none."""
    try:
        return make_shape(shape.name, shape.config)
    except ConfigError as error:
        return str(error)


# The report


@dataclass(frozen=True)
class Calibration:
    """Timings of an engine, and the tokens of the strategies that are compared.

    Attributes:
        timer: timer of the engine.
        timings: timings.
        lengths: tokens of prompts and turns.
        flops: formula of the model's operations, or the reason why there is none.
    """

    timer: EngineTimer
    timings: EngineTimings
    lengths: TextLengths
    flops: ForwardFlops | str

    @cached_property
    def fit(self) -> Floats:
        """Seconds of each term, [6]."""
        return self.timings.fit()

    @cached_property
    def samples(self) -> Floats:
        """Seconds of each term in bootstrap samples, [samples, 6]."""
        return self.timings.resample(_SAMPLES)

    def crossing(self, rival: str, at_once: int) -> Crossing:
        fits = self.fit, self.samples
        return find_crossing_seconds(rival, self.lengths, fits, at_once, self.timings.max_batch_size, _CONFIDENCE)

    def predict(self, strategy: str, text_tokens: Floats, at_once: int) -> Floats:
        """Seconds of a strategy on so many texts at once, [lengths]."""
        terms = count_strategy_terms(strategy, self.lengths, text_tokens, at_once, self.timings.max_batch_size)
        seconds: Floats = terms @ self.fit
        return seconds


def format_calibration(calibration: Calibration) -> list[str]:
    """Return the lines of the report."""
    timings = calibration.timings
    flops = calibration.flops
    window = calibration.timer.max_positions
    lengths = calibration.lengths
    errors = timings.relative_errors(calibration.fit)
    longest = max(timing.shape.prompt_tokens for timing in timings.timings)
    lines = [
        f"calibration: {len(timings.timings)} timings in {timings.seconds:.0f} s, prompts up to {longest:,} tokens, "
        f"{timings.num_rounds} rounds after a warm-up; fit within {np.median(errors):.1%} (median), "
        f"{errors.max():.1%} (largest)",
        "  seconds: "
        + ", ".join(f"{seconds:.3g} {term}" for term, seconds in zip(TERMS, calibration.fit, strict=True)),
        f"  a text in parts of at most {lengths.part} tokens; {lengths.source}",
        f"delegation costs less than the other strategy from this length of a text on, in tokens ({_CONFIDENCE:.0%} "
        f"bootstrap interval over {timings.num_rounds} repeats)",
    ]
    text_tokens = make_text_lengths(lengths.part)
    count_costs = {"tokens": partial(count_tokens, lengths=lengths, text_tokens=text_tokens)}
    if isinstance(flops, str):
        lines.append(f"  FLOPs are left out: {flops}")
    else:
        count_costs["FLOPs"] = partial(count_flops, lengths=lengths, text_tokens=text_tokens, shape=flops)
    delegate_costs = {name: count_cost(DELEGATE) for name, count_cost in count_costs.items()}
    for rival in (FULL_READER, MEMORY):
        lines.append(f"  against {rival}")
        for at_once in (1, AT_ONCE):
            crossing = calibration.crossing(rival, at_once)
            interval = f"{_format_length(crossing.low)} to {_format_length(crossing.high)}"
            title = "seconds, one request" if at_once == 1 else f"seconds, {at_once} requests at once"
            is_timed = crossing.length <= longest or crossing.length == inf
            note = "" if is_timed else "; extrapolated beyond the timed prompts"
            lines.append(f"    {title}: {_format_length(crossing.length)} ({interval}){note}")
        for name, count_cost in count_costs.items():
            exact = find_crossing(text_tokens, delegate_costs[name], count_cost(rival))
            lines.append(f"    {name}: {_format_length(exact)}")
    last = list_batches(DELEGATE, lengths, text_tokens)[-1]
    fits = text_tokens[last.cached + last.prompt + last.generated <= window]
    longest_text = f"{fits[-1]:,.0f}" if len(fits) else "0"
    lines.append(
        f"  the model's window is {window:,} tokens, which bounds the full reader; with the reports of all "
        f"parts, the root that delegates fits up to a text of {longest_text} tokens"
    )
    return [*lines, *_format_predictions(calibration)]


def _format_length(length: float) -> str:
    return f"none up to {LONGEST:,}" if length == inf else f"{length:,.0f}"


def _format_predictions(calibration: Calibration) -> list[str]:
    """Return a table of the predicted seconds of one request, and of each of many at once."""
    lines = [f"predicted seconds of one request / of each of {AT_ONCE} at once"]
    lines.append("".join(f"{title:>20}" for title in ("tokens of the text", *STRATEGIES)))
    for length in _TABLE_LENGTHS:
        cells = [f"{length:,}"]
        for strategy in STRATEGIES:
            one, many = (float(calibration.predict(strategy, np.array([length]), n)[0]) / n for n in (1, AT_ONCE))
            cells.append(f"{one:.3g} / {many:.3g}")
        lines.append("".join(f"{cell:>20}" for cell in cells))
    return lines


# The comparison with what is then measured


@dataclass(frozen=True)
class Play:
    """A strategy that read texts of random ids, with the lengths of its prompts and turns.

    Attributes:
        strategy: one of `STRATEGIES`.
        at_once: number of texts that were read at the same time.
        text_tokens: tokens of each text.
        predicted: seconds by the fit.
        seconds: seconds on the clock, of one play, or of up to `MIN_ROUNDS` after a warm-up; empty if not measured.
        not_measured: the reason, or an empty text.
    """

    strategy: str
    at_once: int
    text_tokens: float
    predicted: float
    seconds: tuple[float, ...]
    not_measured: str = ""

    @property
    def measured(self) -> float | None:
        """The median of the seconds on the clock."""
        return float(np.median(self.seconds)) if self.seconds else None


def measure(
    calibration: Calibration,
    strategies: Sequence[str],
    lengths: Mapping[int, Sequence[float]],
    longest_seconds: float,
    repeat_seconds: float,
) -> Iterator[Play]:
    """Play strategies at some lengths of a text.

    Args:
        calibration: timer and predictions.
        strategies: of `STRATEGIES`.
        lengths: tokens of the texts, by the number of texts that are read at once.
        longest_seconds: predicted seconds above which a play is left out.
        repeat_seconds: predicted seconds of all plays of one strategy at one length. Without time for a second play the
            first one counts, else it is a warm-up.
    """
    rounds = count(MAX_ROUNDS + 2)  # later than those of the timings, so that no prompt is in a cache
    for at_once, text_tokens in lengths.items():
        for length in text_tokens:
            for strategy in strategies:
                predicted = float(calibration.predict(strategy, np.array([length]), at_once)[0])
                shapes = list_shapes(strategy, calibration.lengths, length, at_once)
                play = Play(strategy, at_once, length, predicted, ())
                if max(shape.prompt_tokens + shape.new_tokens for shape in shapes) > calibration.timer.max_positions:
                    yield replace(play, not_measured="a context is longer than the model's window")
                    continue
                if predicted > longest_seconds:
                    yield replace(play, not_measured=f"it would take more than {longest_seconds:.0f} s")
                    continue
                num_plays = max(1, min(1 + MIN_ROUNDS, int(repeat_seconds / predicted)))
                seconds = tuple(
                    sum(calibration.timer.time_batch(shape, next(rounds)).seconds for shape in shapes)
                    for _ in range(num_plays)
                )
                yield replace(play, seconds=seconds[1:] or seconds)


def compare_plays(plays: Iterable[Play], *, is_predicted: bool) -> list[tuple[float, float]]:
    """Return lengths with the seconds of delegation over those of the full reader, where both were measured.

    Args:
        plays: of both strategies, with one number of texts at once.
        is_predicted: whether the predicted seconds are compared and not the measured ones.
    """
    seconds = {
        (play.strategy, play.text_tokens): play.predicted if is_predicted else play.measured
        for play in plays
        if play.measured is not None
    }
    ratios = []
    for length in sorted({length for _, length in seconds}):
        delegated, full = (seconds.get((strategy, length)) for strategy in (DELEGATE, FULL_READER))
        if delegated is not None and full is not None:
            ratios.append((length, delegated / full))
    return ratios


def find_ratio_crossing(ratios: Sequence[tuple[float, float]]) -> float | None:
    """Return the length from which on a ratio is at most 1, at all longer ones too.

    Args:
        ratios: lengths in ascending order, and the ratio at each. Between two lengths it is a power of the length.

    Returns:
        `None` if the ratio at the last length is above 1, or none is above 1.
    """
    if not ratios or ratios[-1][1] > 1:
        return None
    for (short, short_ratio), (long, long_ratio) in reversed(list(pairwise(ratios))):
        if short_ratio > 1:
            share = log(short_ratio) / (log(short_ratio) - log(long_ratio))
            crossing: float = short * (long / short) ** share
            return crossing
    return None


def _format_plays(calibration: Calibration, plays: Iterable[Play]) -> Iterator[str]:
    """Yield a line for each play as soon as it ends, and for each number of texts at once the crossing."""
    yield "predicted / measured seconds"
    for at_once, group in groupby(plays, key=lambda play: play.at_once):
        title = "one request" if at_once == 1 else f"{at_once} requests at once"
        played = []
        for play in group:
            played.append(play)
            place = f"  {title}, {play.text_tokens:,.0f} tokens, {play.strategy}: {play.predicted:.3g}"
            if play.measured is None:
                yield f"{place} / not measured: {play.not_measured}"
            else:
                yield f"{place} / {play.measured:.3g} = {play.predicted / play.measured:.2f}"
        ratios = compare_plays(played, is_predicted=False)
        measured = find_ratio_crossing(ratios)
        if measured is not None:
            predicted = calibration.crossing(FULL_READER, at_once).length
            ratio = "" if predicted == inf else f" ({predicted / measured:.2f})"
            yield (
                f"  {title}: crossing predicted at {_format_length(predicted)}, measured at {measured:,.0f} tokens"
                f"{ratio}"
            )
        elif len(ratios) > 1:
            shown = " and ".join(f"x{ratio:.2f}" for _, ratio in ratios)
            yield (
                f"  {title}: delegation takes {shown} the seconds of the full reader at these lengths, so they have "
                "no measured crossing between them"
            )


def _choose_lengths(calibration: Calibration, at_once: int) -> tuple[float, float]:
    """Return two lengths around the crossing that a full reader's context holds."""
    lengths = calibration.lengths
    longest = calibration.timer.max_positions - lengths.prompt - ceil(lengths.answer)
    crossing = min(calibration.crossing(FULL_READER, at_once).length, longest / 1.5)
    return max(1.0, round(crossing / 1.5)), max(2.0, round(min(crossing * 1.5, longest)))


def list_shapes(strategy: str, lengths: TextLengths, text_tokens: float, at_once: int) -> list[BatchShape]:
    """Return the batches in which a strategy reads so many texts of this length at once."""
    shapes = []
    for batches in list_batches(strategy, lengths, np.array([text_tokens])):
        shape = BatchShape(
            requests=at_once * round(float(batches.requests[0])),
            prompt_tokens=max(1, round(float(batches.cached[0] + batches.prompt[0]))),
            new_tokens=max(1, round(float(batches.generated[0]))),
        )
        shapes += [shape] * round(float(batches.repeats[0]))
    return shapes
