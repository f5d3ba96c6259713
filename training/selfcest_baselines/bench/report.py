"""Tables and the plot of the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from selfcest_baselines.bench.runs import Results, export
from selfcest_baselines.bench.summary import Scores, aggregate, mean, paired, profile, scores
from selfcest_env.palette import EDGE, LINE, SERIES
from selfcest_env.symbolic.scenarios import SCENARIOS
from selfcest_training.files import atomic_write, write_text

_THRESHOLDS = np.linspace(0, 1, 101)
MAX_COLOURED = 5  # learners; more lines cannot be told apart


def format_scenarios() -> str:
    """Return a Markdown table of the scenarios with their reference returns."""
    heads = ("scenario", "what it asks for", "agents", "horizon", "idle", "random", "never", "optimal", "solved from")
    rows = []
    for name, scenario in SCENARIOS.items():
        reference = scenario.reference
        rows.append(
            [
                f"`{name}`",
                scenario.description,
                str(scenario.rules.num_agents),
                str(reference.horizon),
                f"{reference.idle:.2f}",
                f"{reference.random:.3f}",
                "-" if reference.never is None else f"{reference.never:.3f}",
                f"{reference.optimal:.3f}",
                f"{scenario.threshold:.3f}",
            ]
        )
    return _markdown(heads, rows)


def table(results: Results) -> str:
    """Return the results as a Markdown table with a column per learner.

    A cell is the median team return at the end of the runs, with the number of runs that solved the scenario. The last
    rows aggregate normalised returns over the scenarios that all learners have played: the interquartile mean, and the
    mean difference to the first learner over scenarios and common seeds.
    """
    entries = list(dict.fromkeys(cell.entry for cell in results))
    names = list(dict.fromkeys(cell.scenario for cell in results))
    rows = []
    for name in names:
        row = [f"`{name}`"]
        for entry in entries:
            returns = [run.last for cell, run in results.items() if (cell.scenario, cell.entry) == (name, entry)]
            num_solved = sum(final >= SCENARIOS[name].threshold for final in returns)
            row.append(f"{np.median(returns):.3f} ({num_solved} of {len(returns)})" if returns else "-")
        rows.append(row)
    scores_by_entry = {entry: scores(results, entry) for entry in entries}
    shared = _shared_scenarios(scores_by_entry)
    if shared:
        means = []
        for entry_scores in scores_by_entry.values():
            means.append(str(aggregate([entry_scores[name] for name in shared])))
        rows.append([f"interquartile mean, {len(shared)} scenario{'s' * (len(shared) > 1)}", *means])
        if len(entries) > 1:
            differences = [_mean_difference(paired(results, entry, entries[0]), shared) for entry in entries[1:]]
            rows.append([f"mean difference to `{entries[0]}`, paired by seed", "-", *differences])
    return _markdown(["scenario", *(f"`{entry}`" for entry in entries)], rows)


def _mean_difference(differences: Mapping[str, Scores], shared: Sequence[str]) -> str:
    # Two learners can share a scenario without sharing a seed there.
    if any(name not in differences for name in shared):
        return "-"
    return str(aggregate([differences[name] for name in shared], mean))


def write(results: Results, folder: Path) -> list[Path]:
    """Write results.json, table.md and profiles.png, and return their paths; nothing without results."""
    if not results:
        return []
    json_path = folder / "results.json"
    table_path = folder / "table.md"
    plot_path = folder / "profiles.png"
    export(results, json_path)
    write_text(table_path, table(results) + "\n")
    draw(results, plot_path)
    return [json_path, table_path, plot_path]


def draw(results: Results, file: Path) -> None:
    """Plot performance profiles: the share of runs above each normalised return.

    They cover the scenarios that all learners have played. The best MAX_COLOURED learners at half of optimal play have
    colours, the others are grey. Source: Agarwal et al. 2021 (arXiv 2108.13264).
    """
    from matplotlib.figure import Figure  # slow to import, and only the plot needs it

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    scores_by_entry = {entry: scores(results, entry) for entry in dict.fromkeys(cell.entry for cell in results)}
    shared = _shared_scenarios(scores_by_entry)
    if shared:
        profiles = {
            entry: profile([entry_scores[name] for name in shared], _THRESHOLDS)
            for entry, entry_scores in scores_by_entry.items()
        }
        at_half = {entry: float(np.interp(0.5, _THRESHOLDS, shares)) for entry, shares in profiles.items()}
        ranked = sorted(profiles, key=at_half.__getitem__, reverse=True)
        for rank, entry in enumerate(ranked):
            colour = SERIES[rank].light if rank < MAX_COLOURED else EDGE.light
            style = "-" if rank < MAX_COLOURED else "--"
            axis.plot(_THRESHOLDS, profiles[entry], style, color=colour, label=f"{entry} ({at_half[entry]:.0%})")
        axis.legend(fontsize=8, frameon=False, title="share of runs above 0.5", title_fontsize=8)
        best = f"{ranked[0]} passes half of optimal play most often"
        runs = f"{len(shared)} scenario{'s' * (len(shared) > 1)}"
        axis.set_title(f"{best} ({runs})" if len(ranked) > 1 else runs, fontsize=10)
    axis.set_xlabel("normalised return: 0 random, 1 optimal play")
    axis.set_ylabel("share of runs above")
    axis.set_ylim(0, 1)
    axis.grid(color=LINE.light, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    with atomic_write(file) as partial:
        figure.savefig(partial, dpi=120, metadata={"Software": None})


def _shared_scenarios(scores_by_entry: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Return the scenarios that all entries have played."""
    played = list(scores_by_entry.values())
    if not played:
        return []
    return [name for name in played[0] if all(name in entry_scores for entry_scores in played)]


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))
