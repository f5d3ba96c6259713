"""The benchmark's tables and picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from selfcest_baselines.bench.runs import Results, export
from selfcest_baselines.bench.summary import Scores, aggregate, mean, paired, profile, scores
from selfcest_env.symbolic.scenarios import SCENARIOS
from selfcest_training.files import whole, write_text

_THRESHOLDS = np.linspace(0, 1, 101)


def known_scenarios() -> str:
    """What is known of every scenario before anybody learns, in Markdown."""
    heads = ("scenario", "what it asks for", "agents", "horizon", "idle", "random", "never", "optimal", "solved from")
    lines = []
    for name, found in SCENARIOS.items():
        known = found.reference
        never = "-" if known.never is None else f"{known.never:.3f}"
        line = [f"`{name}`", found.about, str(found.rules.num_agents), str(known.horizon), f"{known.idle:.2f}"]
        lines.append([*line, f"{known.random:.3f}", never, f"{known.optimal:.3f}", f"{found.threshold:.3f}"])
    return _markdown(heads, lines)


def table(results: Results) -> str:
    """Median team return at the end, and how many runs solved it, by scenario and learner, in Markdown; then the
    interquartile mean of normalised returns over the scenarios that all these learners have played, and how much more
    each scores there than the first, on average over scenarios and the seeds that both have played."""
    entries = list(dict.fromkeys(cell.entry for cell in results))
    names = list(dict.fromkeys(cell.scenario for cell in results))
    by_entry = {entry: scores(results, entry) for entry in entries}
    lines = []
    for name in names:
        line = [f"`{name}`"]
        for entry in entries:
            ends = [run.last for cell, run in results.items() if (cell.scenario, cell.entry) == (name, entry)]
            solved = sum(end >= SCENARIOS[name].threshold for end in ends)
            line.append(f"{np.median(ends):.3f} ({solved} of {len(ends)})" if ends else "-")
        lines.append(line)
    if shared := _shared(by_entry):
        means = [str(aggregate([found[name] for name in shared])) for found in by_entry.values()]
        lines.append([f"interquartile mean, {len(shared)} scenario{'s' * (len(shared) > 1)}", *means])
        more = [_more(paired(results, entry, entries[0]), shared) for entry in entries[1:]]
        lines += [[f"more than `{entries[0]}`, seed by seed", "-", *more]] if more else []
    return _markdown(["scenario", *(f"`{entry}`" for entry in entries)], lines)


def _more(found: Mapping[str, Scores], shared: Sequence[str]) -> str:
    return str(aggregate([found[name] for name in shared], mean)) if all(name in found for name in shared) else "-"


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, table.md and profiles.png; their paths."""
    if not results:
        return []
    files = [folder / name for name in ("results.json", "table.md", "profiles.png")]
    export(results, files[0])
    write_text(files[1], table(results) + "\n")
    draw(results, files[2])
    return files


def draw(results: Results, file: Path) -> None:
    """Performance profiles over the scenarios that all have played: the share of runs above each normalised return."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    by_entry = {entry: scores(results, entry) for entry in dict.fromkeys(cell.entry for cell in results)}
    if shared := _shared(by_entry):
        for entry, found in by_entry.items():
            axis.plot(_THRESHOLDS, profile([found[name] for name in shared], _THRESHOLDS), label=entry)
        axis.legend(fontsize=8)
    axis.set_xlabel("normalised return: 0 random, 1 optimal play")
    axis.set_ylabel("share of runs above")
    axis.set_ylim(0, 1)
    with whole(file) as partial:
        figure.savefig(partial, dpi=110)
    pyplot.close(figure)


def _shared(by_entry: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Scenarios that all have played."""
    played = list(by_entry.values())
    return [name for name in (played[0] if played else ()) if all(name in found for found in played)]


def _markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines))
