"""Seconds, FLOPs and memory of delegation, a full reader and a serial memory, timed alone on an idle machine.

A calibration of ten minutes (`selfcest plan --calibrate`) predicts the seconds. Then every strategy reads texts of
random ids, with the lengths of its prompts and turns: seconds depend on these, and neither on words nor on weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from selfcest_cli.calibrate import (
    Calibration,
    CalibrationOptions,
    Play,
    calibrate,
    compare_plays,
    find_ratio_crossing,
    measure,
)
from selfcest_env import __version__
from selfcest_eval.play.model_costs import DecoderShape
from selfcest_training.config_file import load_config
from selfcest_training.planning.crossing import (
    DELEGATE,
    FULL_READER,
    MEMORY,
    STRATEGIES,
    TextLengths,
    count_flops,
    find_crossing,
    list_batches,
    make_text_lengths,
)
from selfcest_training.planning.engine_timing import AT_ONCE, TERMS
from studies.runner import CONFIGS, Rerun, name_commit, read_json, store_json, table

TIMED = CONFIGS / "novels.yaml"
# Reports of the policies have about 5 tokens, answers about 10. With a scaled rotary base the full reader's context
# holds 32,000 tokens.
CHANGES = (
    "limits.reply_tokens=8",
    "limits.answer_reserve=16",
    "model.options.rope_factor=4",
    "sampler.options.prefix_tokens=0",
    "threads=2",
)
LENGTHS: Mapping[int, Sequence[float]] = {
    1: (512, 1024, 2048, 4096, 8192, 16384, 32000),
    AT_ONCE: (512, 1024, 2048),
}
CALIBRATION_MINUTES = 10.0
LONGEST_SECONDS = 300.0  # of a play
REPEAT_SECONDS = 40.0  # of all plays of one strategy at one length
NUMBER_BYTES = 2  # of a weight, and of a number in the cache, as in novels_frontier.yaml
Cell = Mapping[str, Any]


def rerun(how: Rerun) -> list[Path]:
    """Time the strategies, and store the cell and the timings of the calibration."""
    file = how.folder / "seconds.jsonl"
    how.check_new(file)
    how.folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    options = CalibrationOptions(file, CALIBRATION_MINUTES, None, None, measure=False)
    plays = []
    with calibrate(load_config(TIMED, CHANGES), options, console) as calibration:
        for play in measure(calibration, STRATEGIES, LENGTHS, LONGEST_SECONDS, REPEAT_SECONDS):
            plays.append(play)
            console.print(play)
    return [file, store_json(how.folder / "seconds.json", make_cell(calibration, plays))]


def make_cell(calibration: Calibration, plays: Sequence[Play]) -> dict[str, Any]:
    """Return the cell of a calibration and of what was then measured."""
    assert isinstance(calibration.flops, DecoderShape)
    timings = calibration.timings
    crossings = []
    for at_once in LENGTHS:
        predicted = calibration.crossing(FULL_READER, at_once)
        bounds = {name: length if isfinite(length) else None for name, length in asdict(predicted).items()}
        crossings.append({"at_once": at_once, **bounds})
    return {
        "experiment": "seconds",
        "version": __version__,
        "commit": name_commit(),
        "changes": CHANGES,
        **timings.subject,
        "calibration_seconds": timings.seconds,
        "rounds": timings.num_rounds,
        "median_error": float(np.median(timings.relative_errors(calibration.fit))),
        "fit": dict(zip(TERMS, calibration.fit.tolist(), strict=True)),
        "lengths": asdict(calibration.lengths),
        "flops_crossing": find_flops_crossing(calibration.lengths, calibration.flops),
        "crossings": crossings,
        "plays": [asdict(play) for play in plays],
        "costs": [
            make_cost(strategy, calibration.lengths, length, calibration.flops)
            for length in LENGTHS[1]
            for strategy in STRATEGIES
        ],
    }


def find_flops_crossing(lengths: TextLengths, shape: DecoderShape) -> float | None:
    """Return the tokens of a text from which on delegation takes at most the FLOPs of the full reader."""
    text_tokens = make_text_lengths(lengths.part)
    delegated, full = (count_flops(strategy, lengths, text_tokens, shape) for strategy in (DELEGATE, FULL_READER))
    crossing = find_crossing(text_tokens, delegated, full)
    return crossing if isfinite(crossing) else None


def make_cost(strategy: str, lengths: TextLengths, text_tokens: float, shape: DecoderShape) -> dict[str, Any]:
    """Return the FLOPs of one text, and the bytes of weights and cache if all clones run at once."""
    cached = shape.cached_numbers * count_cached_tokens(strategy, lengths, text_tokens)
    return {
        "strategy": strategy,
        "text_tokens": text_tokens,
        "flops": float(count_flops(strategy, lengths, np.array([text_tokens]), shape)[0]),
        "memory": NUMBER_BYTES * (shape.weights + cached),
    }


def count_cached_tokens(strategy: str, lengths: TextLengths, text_tokens: float) -> float:
    """Return the most tokens whose keys and values are in memory at one time, for one text."""
    contexts = [
        float(batches.requests[0] * (batches.cached[0] + batches.prompt[0] + batches.generated[0]))
        for batches in list_batches(strategy, lengths, np.array([text_tokens]))
    ]
    if strategy == DELEGATE:
        contexts[1] += contexts[0]  # the root waits for its clones
    return max(contexts)


# The page


def read_plays(cell: Cell, at_once: int) -> list[Play]:
    """Return the plays of a cell with so many texts at once."""
    plays = [Play(**{**play, "seconds": tuple(play["seconds"])}) for play in cell["plays"]]
    return [play for play in plays if play.at_once == at_once]


def find_crossings(cell: Cell, at_once: int) -> tuple[float | None, float | None]:
    """Return the crossing of the predicted and of the measured seconds, both between the measured lengths."""
    plays = read_plays(cell, at_once)
    predicted = find_ratio_crossing(compare_plays(plays, is_predicted=True))
    return predicted, find_ratio_crossing(compare_plays(plays, is_predicted=False))


def describe_seconds(cell: Cell) -> dict[str, str]:
    """Return the figures of the page's head by name: crossings in tokens, and ratios of seconds."""
    figures = {}
    for crossing in cell["crossings"]:
        at_once = crossing["at_once"]
        _, measured = find_crossings(cell, at_once)
        figures[f"measured_{at_once}"] = _format_length(measured and round(measured, -2))
        figures[f"predicted_{at_once}"] = _format_length(crossing["length"] and round(crossing["length"], -2))
    for at_once, length in ((1, 16384), (AT_ONCE, 2048)):
        ratio = _divide_seconds(cell, DELEGATE, MEMORY, length, at_once)
        figures[f"memory_{at_once}"] = "not measured" if ratio is None else f"{ratio:.2f}"
    return figures


def _divide_seconds(cell: Cell, strategy: str, rival: str, length: float, at_once: int) -> float | None:
    """Return the measured seconds of a strategy over those of a rival, or `None` if one was not measured."""
    measured = {play.strategy: play.measured for play in read_plays(cell, at_once) if play.text_tokens == length}
    seconds, rival_seconds = measured.get(strategy), measured.get(rival)
    return None if seconds is None or rival_seconds is None else seconds / rival_seconds


def make_crossing_table(cell: Cell) -> str:
    """Return the lengths from which on delegation costs at most what the full reader costs."""
    lines = []
    for crossing in cell["crossings"]:
        low, high = _format_length(crossing["low"]), _format_length(crossing["high"])
        predicted, measured = find_crossings(cell, crossing["at_once"])
        line = [str(crossing["at_once"]), _format_length(cell["flops_crossing"])]
        line += [f"{_format_length(crossing['length'])} ({low} to {high})"]
        line += [_format_length(predicted), _format_length(measured)]
        lines.append([*line, f"{predicted / measured:.2f}" if predicted and measured else "-"])
    heads = ["texts at once", "in FLOPs", "in seconds, predicted", "predicted, between the lengths below"]
    return table([*heads, "measured, likewise", "ratio"], lines)


def _format_length(length: float | None) -> str:
    return "none" if length is None else f"{length:,.0f}"


def make_play_table(cell: Cell) -> str:
    """Return the measured and predicted seconds of every strategy by length."""
    lines = []
    for at_once in LENGTHS:
        plays = {(play.strategy, play.text_tokens): play for play in read_plays(cell, at_once)}
        for length in sorted({length for _, length in plays}):
            line = [str(at_once), f"{length:,.0f}"]
            for play in (plays[strategy, length] for strategy in STRATEGIES):
                measured = "-" if play.measured is None else f"{play.measured:.3g}"
                line.append(f"{measured} ({play.predicted:.3g})")
            lines.append(line)
    return table(["texts at once", "tokens", *(f"{strategy}, s" for strategy in STRATEGIES)], lines)


def make_cost_table(cell: Cell) -> str:
    """Return the FLOPs and memory of every strategy for one text by length."""
    costs = {(cost["strategy"], cost["text_tokens"]): cost for cost in cell["costs"]}
    lines = []
    for length in sorted({length for _, length in costs}):
        chosen = [costs[strategy, length] for strategy in STRATEGIES]
        line = [f"{length:,.0f}", *(f"{cost['flops'] / 1e12:.2f}" for cost in chosen)]
        lines.append([*line, *(f"{cost['memory'] / 1e9:.2f}" for cost in chosen)])
    heads = [f"{strategy}, {unit}" for unit in ("TFLOP", "GB") for strategy in STRATEGIES]
    return table(["tokens", *heads], lines)


Judge = Callable[[Cell], float | None]
"""From the cell to a margin, which is not below 0 where the prediction holds. `None`: it was not measured."""


def _predicts_within(share: float, at_once: int) -> Judge:
    """The crossing of the predicted seconds is so near to that of the measured ones.

    If both have none, the same strategy must be the faster one in both.
    """

    def judge(cell: Cell) -> float | None:
        plays = read_plays(cell, at_once)
        ratios, predicted_ratios = (compare_plays(plays, is_predicted=is_predicted) for is_predicted in (False, True))
        if not ratios:
            return None
        predicted, measured = find_crossings(cell, at_once)
        if predicted is None and measured is None:
            return share if (ratios[-1][1] > 1) == (predicted_ratios[-1][1] > 1) else -inf
        return share - abs(predicted / measured - 1) if predicted and measured else -inf

    return judge


def _takes_between(low: float, high: float, strategy: str, rival: str, length: float, at_once: int) -> Judge:
    """The measured seconds of a strategy over those of a rival are between two ratios."""

    def judge(cell: Cell) -> float | None:
        ratio = _divide_seconds(cell, strategy, rival, length, at_once)
        return None if ratio is None else min(ratio - low, high - ratio)

    return judge


# Stated before the cell was run. Delegation takes .56 of the full reader's FLOPs at 8,192 tokens, and .36 at 16,384.
PREDICTIONS: Mapping[str, Judge] = {
    "one text: the predicted crossing is within 20 % of the measured one": _predicts_within(0.2, 1),
    "16 texts: likewise": _predicts_within(0.2, AT_ONCE),
    "one text of 8,192 tokens: delegation takes at most .67 of the full reader's seconds": _takes_between(
        0, 0.67, DELEGATE, FULL_READER, 8192, 1
    ),
    "one text of 16,384 tokens: at most .5": _takes_between(0, 0.5, DELEGATE, FULL_READER, 16384, 1),
    "one text of 16,384 tokens: delegation takes at most .8 of the memory's seconds": _takes_between(
        0, 0.8, DELEGATE, MEMORY, 16384, 1
    ),
    "16 texts of 2,048 tokens: delegation takes .8 to 1.25 of the memory's seconds": _takes_between(
        0.8, 1.25, DELEGATE, MEMORY, 2048, AT_ONCE
    ),
}


def make_prediction_lines(cell: Cell | None) -> list[list[str]]:
    """Return the lines of the page's table of predictions."""
    lines = []
    for text, judge in PREDICTIONS.items():
        margin = None if cell is None else judge(cell)
        if margin is None:
            lines.append([text, "not run yet" if cell is None else "not measured", ""])
        else:
            shown = "no crossing" if margin == -inf else f"{margin:.2f}"
            lines.append([text, shown, "held" if margin >= 0 else "**failed**"])
    return lines


def read_cell(evidence: Path) -> Cell | None:
    """Return the stored cell, or `None` before it has run."""
    file = evidence / "seconds.json"
    cell: Cell | None = read_json(file) if file.exists() else None
    return cell
