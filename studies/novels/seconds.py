"""Seconds, FLOPs and memory of delegation, a full reader and a serial memory, timed alone on an idle machine.

A calibration of ten minutes (`selfcest plan --calibrate`) predicts the seconds. Then every strategy reads texts of
random ids, with the lengths of its prompts and turns: seconds depend on these, and neither on words nor on weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from selfcest_cli.calibrate import Calibration, CalibrationOptions, Play, calibrate, find_measured_crossing, measure
from selfcest_env import __version__
from selfcest_eval.play.model_costs import DecoderShape, make_shape
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
from selfcest_training.planning.engine_timing import AT_ONCE
from selfcest_training.planning.shapes import get_model_shape
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
    1: (512, 1024, 2048, 4096, 8192, 16384, 32768),
    AT_ONCE: (512, 1024, 2048, 4096),
}
CALIBRATION_MINUTES = 10.0
PLAY_SECONDS = 150.0  # predicted seconds of all plays of one strategy at one length
NUMBER_BYTES = 4  # float32
MACHINE = ("model", "sampler", "threads", "machine")
Cell = Mapping[str, Any]


def rerun(how: Rerun) -> list[Path]:
    """Time the strategies, and store the cell."""
    config = load_config(TIMED, CHANGES)
    console = Console(stderr=True)
    file = how.folder / "seconds.jsonl"
    options = CalibrationOptions(file, CALIBRATION_MINUTES, None, None, True)
    how.folder.mkdir(parents=True, exist_ok=True)
    with calibrate(config, options, console) as calibration:
        plays = []
        for play in measure(calibration, STRATEGIES, LENGTHS, PLAY_SECONDS):
            plays.append(play)
            console.print(play)
    file.unlink()
    model = get_model_shape(config.model)
    return [
        store_json(how.folder / "seconds.json", make_cell(calibration, plays, make_shape(model.name, model.config)))
    ]


def make_cell(calibration: Calibration, plays: Sequence[Play], shape: DecoderShape) -> dict[str, Any]:
    """Return the cell of a calibration and of what was then measured."""
    crossings = []
    text_tokens = make_text_lengths(calibration.lengths.part)
    for at_once in LENGTHS:
        predicted = calibration.crossing(FULL_READER, at_once)
        own, other = (count_flops(name, calibration.lengths, text_tokens, shape) for name in (DELEGATE, FULL_READER))
        lengths = {"flops": find_crossing(text_tokens, own, other), **asdict(predicted)}
        found = {name: length if isfinite(length) else None for name, length in lengths.items()}
        measured = find_measured_crossing([play for play in plays if play.at_once == at_once])
        crossings.append({"at_once": at_once, **found, "measured": measured})
    return {
        "experiment": "seconds",
        "version": __version__,
        "commit": name_commit(),
        "changes": CHANGES,
        **{key: calibration.timings.subject[key] for key in MACHINE},
        "calibration_seconds": calibration.timings.seconds,
        "lengths": asdict(calibration.lengths),
        "crossings": crossings,
        "plays": [
            {
                **asdict(play),
                "flops": float(count_flops(play.strategy, calibration.lengths, np.array([play.text_tokens]), shape)[0]),
                "memory": shape.weights * NUMBER_BYTES
                + play.at_once
                * shape.cached_numbers
                * NUMBER_BYTES
                * count_cached_tokens(play.strategy, calibration.lengths, play.text_tokens),
            }
            for play in plays
        ],
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


def make_crossing_table(cell: Cell) -> str:
    """Return the lengths from which on delegation costs less than the full reader."""
    lines = []
    for crossing in cell["crossings"]:
        names = ("flops", "length", "low", "high", "measured")
        flops, length, low, high, measured = (_format_length(crossing[name]) for name in names)
        ratio = (
            f"{crossing['length'] / crossing['measured']:.2f}" if crossing["length"] and crossing["measured"] else "-"
        )
        lines.append([str(crossing["at_once"]), flops, f"{length} ({low} to {high})", measured, ratio])
    return table(["texts at once", "in FLOPs", "in seconds, predicted", "measured", "ratio"], lines)


def _format_length(length: float | None) -> str:
    return "none" if length is None else f"{length:,.0f}"


def make_play_table(cell: Cell) -> str:
    """Return measured and predicted seconds, FLOPs and memory of every strategy by length."""
    plays: dict[tuple[int, float], dict[str, Cell]] = {}
    for play in cell["plays"]:
        plays.setdefault((play["at_once"], play["text_tokens"]), {})[play["strategy"]] = play
    lines = []
    for (at_once, length), found in plays.items():
        line = [str(at_once), f"{length:,.0f}"]
        for play in (found[strategy] for strategy in STRATEGIES):
            measured = "-" if play["measured"] is None else f"{play['measured']:.3g}"
            line.append(f"{measured} ({play['predicted']:.3g})")
        line.append(" ".join(f"{found[strategy]['flops'] / 1e12:.2f}" for strategy in STRATEGIES))
        line.append(" ".join(f"{found[strategy]['memory'] / 1e9:.2f}" for strategy in STRATEGIES))
        lines.append(line)
    heads = [f"{strategy}, s" for strategy in STRATEGIES]
    return table(["at once", "tokens", *heads, "TFLOP a text", "ideal memory, GB"], lines)


def _read_seconds(cell: Cell, strategy: str, length: float, at_once: int) -> float | None:
    places = {(play["strategy"], play["text_tokens"], play["at_once"]): play["measured"] for play in cell["plays"]}
    seconds: float | None = places.get((strategy, length, at_once))
    return seconds


Judged = Callable[[Cell], float | None]
"""From the cell to a margin, which is not below 0 where the prediction holds. `None`: it was not measured."""


def _predicts_within(share: float, at_once: int) -> Judged:
    def judge(cell: Cell) -> float | None:
        crossing = next(crossing for crossing in cell["crossings"] if crossing["at_once"] == at_once)
        if not crossing["length"] or not crossing["measured"]:
            return None
        return share - abs(float(crossing["length"]) / float(crossing["measured"]) - 1)

    return judge


def _takes_at_most(strategy: str, rival: str, length: float, at_once: int, share: float) -> Judged:
    def judge(cell: Cell) -> float | None:
        own, other = (_read_seconds(cell, name, length, at_once) for name in (strategy, rival))
        return None if own is None or other is None else share - own / other

    return judge


# Stated before the cell was run.
PREDICTIONS: Mapping[str, Judged] = {
    "one request: the calibration's crossing is within 20 % of the measured one": _predicts_within(0.2, 1),
    "16 requests: likewise": _predicts_within(0.2, AT_ONCE),
    "one request, 8,192 tokens: delegation takes at most .8 of the full reader's seconds": _takes_at_most(
        DELEGATE, FULL_READER, 8192, 1, 0.8
    ),
    "one request, 16,384 tokens: delegation takes at most .8 of the memory's seconds": _takes_at_most(
        DELEGATE, MEMORY, 16384, 1, 0.8
    ),
    "16 requests, 4,096 tokens: the memory takes at most 1.25 of delegation's seconds": _takes_at_most(
        MEMORY, DELEGATE, 4096, AT_ONCE, 1.25
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
            lines.append([text, f"{margin:.2f}", "held" if margin >= 0 else "**failed**"])
    return lines


def read_cell(evidence: Path) -> Cell | None:
    file = evidence / "seconds.json"
    cell: Cell | None = read_json(file) if file.exists() else None
    return cell
