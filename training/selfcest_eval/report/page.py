"""The report as one page, and its figures and numbers as files beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np

from selfcest_eval.html.page import Page, round_number
from selfcest_eval.html.playing import Renderer
from selfcest_eval.html.viewer import EpisodeView, make_viewer_page
from selfcest_eval.play.costs import at_most, cost_name
from selfcest_eval.report.figures import draw_delegation, draw_frontiers, draw_learning_curves
from selfcest_eval.report.findings import ReportRows
from selfcest_eval.report.jobs import JobLog
from selfcest_eval.report.learning import (
    MetricCurve,
    compute_learning_curves,
    get_metric_title,
    group_metrics,
    write_learning_csv,
)
from selfcest_eval.report.pathologies import MEANINGS, ExampleKey, Occurrence
from selfcest_eval.report.sources import Source
from selfcest_eval.report.study_report import write_results
from selfcest_eval.report.tables import interval_heads, write_csv
from selfcest_eval.report.verdict import SourceReport
from selfcest_eval.stats.decision_table import DECISIONS_MEANING, FamilyDecisions
from selfcest_eval.stats.statistics import Estimate
from selfcest_training.config_file import dump_config
from selfcest_training.files import refuse_linked_folder, write_text
from selfcest_training.session import sum_gpu_seconds

LINKED_EXAMPLES = 300  # cells of a report with a link to an episode; those of the largest budgets come first
LINKED_STEPS = 12  # of each variant
FIGURE_METRICS = 9  # panels of the figure of learning curves: the first ones of the page
_BODY = '<main id="main"></main><div id="tip" role="status" class="tip" hidden></div>'


@dataclass(frozen=True)
class LinkedEpisodes:
    """The episodes that a report links to, for the trace page beside it.

    Attributes:
        page: file name of the trace page, which lies in the folder of the page that links to it.
        occurrences: an occurrence for each episode, by the name of the episode on that page. The name is the episode's
            id, with a number if another episode has the same id.
    """

    page: str
    occurrences: dict[str, Occurrence] = field(default_factory=dict)

    def link(self, occurrence: Occurrence) -> str:
        """Return the link to a turn, relative to a page in the same folder, and keep its episode for the trace page."""
        record = occurrence.record
        name = next((name for name, other in self.occurrences.items() if other.record is record), None)
        if name is None:
            num_same = sum(other.record.episode_id == record.episode_id for other in self.occurrences.values())
            name = f"{record.episode_id}~{num_same + 1}" if num_same else record.episode_id
            self.occurrences[name] = occurrence
        anchor = "/".join(quote(str(part), safe="") for part in (name, occurrence.agent_id, occurrence.turn))
        return f"{quote(self.page)}#{anchor}"

    def render(self, title: str, renderers: Sequence[Renderer]) -> str:
        """Return the trace page as HTML. Raises `RecordError` if nothing was linked."""
        views = []
        for name, occurrence in self.occurrences.items():
            record = replace(occurrence.record, episode_id=name)
            views.append(EpisodeView(record, played_as=occurrence.played_as))
        return make_viewer_page(title, views, renderers, ()).render()


@dataclass(frozen=True)
class ReportFiles:
    """Files that lie beside a page and are written together.

    Attributes:
        names: paths of the files from the page's folder.
        write: writes the files to paths in the order of `names`.
    """

    names: Sequence[str]
    write: Callable[[Sequence[Path]], object]


@dataclass(frozen=True)
class ReportPage:
    """A report as a page, and the files beside it, which are drawn only when they are written."""

    page: Page
    files: Sequence[ReportFiles]


def write_report_page(
    reports: Sequence[SourceReport], out: Path, renderers_of: Callable[[Path], Sequence[Renderer]]
) -> list[Path]:
    """Write the page of `make_report_page` with all files beside it. Returns all paths, the page first."""
    folder = out.with_name(f"{out.stem}_files")
    refuse_linked_folder(folder)
    folder.mkdir(exist_ok=True)
    report = make_report_page(reports, out.name, renderers_of)
    written = [out]
    for files in report.files:
        paths = [out.parent / name for name in files.names]
        files.write(paths)
        written += paths
    write_text(out, report.page.render())
    return written


def make_report_page(
    reports: Sequence[SourceReport], name: str, renderers_of: Callable[[Path], Sequence[Renderer]]
) -> ReportPage:
    """Return the page of a report. Beside it belong the folder NAME_files and the trace page NAME_trace.html.

    The folder has figures as PNG and SVG, and tables as CSV.

    Args:
        reports: reports on the sources of the page.
        name: file name of the page.
        renderers_of: function that returns candidate rules for the episodes of a file.
    """
    stem = Path(name).stem
    linked = LinkedEpisodes(f"{stem}_trace.html")
    files: list[ReportFiles] = []
    parts = []
    for number, report in enumerate(reports, 1):
        data = make_source_data(report, linked)
        prefix = f"{stem}_files/" + (f"{number}_" if len(reports) > 1 else "")
        files_of_source = list(_list_files(report, data, prefix))
        data["files"] = list(chain.from_iterable(item.names for item in files_of_source))
        files += files_of_source
        parts.append(data)
    title = ", ".join(report.source.name for report in reports)
    if linked.occurrences:

        def write_trace_page(paths: Sequence[Path]) -> None:
            # The files of one folder were played by the same rules.
            file_by_folder = {occurrence.file.parent: occurrence.file for occurrence in linked.occurrences.values()}
            renderers = list(chain.from_iterable(map(renderers_of, file_by_folder.values())))
            write_text(paths[0], linked.render(f"Episodes of {title}", renderers))

        files.append(ReportFiles([linked.page], write_trace_page))
    return ReportPage(make_page(f"Report: {title}", parts), files)


def make_page(title: str, sources: Sequence[Mapping[str, Any]]) -> Page:
    """Return a page of sources; each is a value of `make_source_data`."""
    return Page(
        title=title,
        body=_BODY,
        styles=("report.css",),
        scripts=("report.js",),
        data={"report": {"sources": sources, "made": datetime.now(UTC).isoformat(" ", "minutes")}, "live": None},
    )


def make_source_data(report: SourceReport, linked: LinkedEpisodes) -> dict[str, Any]:
    """Return everything that the page shows of a source, as JSON values. Missing numbers are null."""
    source = report.source
    sessions = [dict(line) for line in source.sessions]
    warm_start = compute_learning_curves(source.jobs, "warmstart") + compute_learning_curves(source.jobs, "probe")
    return {
        "name": source.name,
        "kind": "study" if source.run is None else "run",
        "folders": [str(folder) for folder in source.folders],
        "headline": report.headline,
        "findings": [asdict(answer) for answer in report.answers],
        "failures": report.failures,
        "intervals": source.settings.intervals(len(source.cells[0].seeds)) if source.cells else "",
        "learning": _make_learning_data(report.learning_curves),
        "training_episodes": _link_training_examples(source, linked),
        "warmstart": _make_learning_data(warm_start),
        "costs": [{"name": name, "title": cost_name(name)} for name in source.settings.costs],
        "first_cost": source.settings.compared[0] if source.settings.compared else "",
        "final": [source.settings.labels[name] for name in source.final],
        "before": dict(source.before),
        "variants": dict(zip(source.run.variants, source.final, strict=True)) if source.run else {},
        "rows": make_result_rows(source, report.findings.rows, _link_examples(source, linked)),
        "delegation": make_delegation_rows(source),
        "decisions": [_make_decision_data(item, source) for item in source.decisions],
        "decisions_meaning": DECISIONS_MEANING.replace("*", ""),
        "pathologies": _make_pathology_rows(source, linked),
        "jobs": [_make_job_data(job) for job in source.jobs],
        "gpu_seconds": sum_gpu_seconds(sessions) if sessions else None,
        "sessions": sessions,
        "config": dump_config(source.run or source.study),
    }


def _link_examples(source: Source, linked: LinkedEpisodes) -> dict[ExampleKey, str]:
    """Return links to examples of cells, and of each whole family under the size "".

    The example of a family is that of its first size with a wrong answer, or of its first one.
    """
    largest_first = sorted(source.examples, key=lambda key: -(math.inf if key[3] is None else key[3]))
    hrefs: dict[ExampleKey, str] = {}
    wrong_families = set()
    for key in largest_first[:LINKED_EXAMPLES]:
        strategy, family, _, budget = key
        example = source.examples[key]
        hrefs[key] = linked.link(example.occurrence)
        family_key = (strategy, family, "", budget)
        if family_key not in hrefs or (not example.is_right and family_key not in wrong_families):
            hrefs[family_key] = hrefs[key]
        if not example.is_right:
            wrong_families.add(family_key)
    return hrefs


def _link_training_examples(source: Source, linked: LinkedEpisodes) -> dict[str, list[list[Any]]]:
    """Return the step and the link of some episodes of each variant, which are spread over its training."""
    steps_by_variant: dict[str, list[int]] = {}
    for variant, step in source.training_examples:
        steps_by_variant.setdefault(variant, []).append(step)
    links: dict[str, list[list[Any]]] = {}
    for variant, steps in steps_by_variant.items():
        places = np.linspace(0, len(steps) - 1, min(LINKED_STEPS, len(steps))).round().astype(int)
        shown_steps = [sorted(steps)[place] for place in places]
        links[variant] = [[step, linked.link(source.training_examples[variant, step])] for step in shown_steps]
    return links


def make_result_rows(
    source: Source, rows: ReportRows, hrefs: Mapping[ExampleKey, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the table as JSON values; rows of whole families are `pooled`.

    An interval is [mean, low, high]. In a family with one size its cell is the pooled row as well. `hrefs` are the
    links of `_link_examples`.
    """
    settings = source.settings
    data = []
    for row, pooled in rows.with_pooled:
        curves = row.curves
        costs = {}
        for name in settings.costs:
            interval = _make_interval(row.costs.get(name), within=(0.0, math.inf))
            if interval is not None:
                costs[name] = interval
        data.append(
            {
                "family": curves.family,
                "size": curves.size,
                "out": curves.shift == "out",
                "pooled": pooled,
                "budget": row.point.budget,
                "limit": at_most(row.point.budget),
                "strategy": settings.labels[row.strategy],
                "final": row.strategy in source.final,
                "baseline": row.strategy in settings.baselines,
                "instances": len(curves.task_ids),
                "seeds": len(curves.seeds),
                "accuracy": _make_interval(row.accuracy, within=(0.0, 1.0)),
                "costs": costs,
                "href": hrefs.get((row.strategy, curves.family, "" if pooled else curves.size, row.point.budget)),
            }
        )
    return data


def make_delegation_rows(source: Source) -> list[dict[str, Any]]:
    """Return the share of instances delegated and the number of clones, by size, of policies that may delegate.

    Both are at the largest budget, before and after RL. An instance whose prompt did not fit is left out.
    """
    rows = []
    for curves in source.cells:
        resampler = source.settings.resampler(curves)
        for name in (*source.before.values(), *source.final):
            if name in curves.strategies and name not in source.settings.baselines:
                clones = curves.strategies[name][-1].cost("clones")
                # An instance without a number of clones stays nan.
                has_clones = np.where(np.isnan(clones), np.nan, clones > 0)
                rows.append(
                    {
                        "family": curves.family,
                        "size": curves.size,
                        "strategy": source.settings.labels[name],
                        "before": name in source.before.values(),
                        "share": _make_interval(resampler.share(has_clones), within=(0.0, 1.0)),
                        "clones": _make_interval(resampler.estimate(clones), within=(0.0, math.inf)),
                    }
                )
    return rows


def _make_decision_data(item: FamilyDecisions, source: Source) -> dict[str, Any]:
    seeds = []
    for seed, decisions in item.seeds.items():
        ways = {"reward": decisions.free, "always": decisions.always, "never": decisions.never}
        rewards = {key: means.reward for key, means in ways.items()}
        threshold = None if math.isinf(decisions.threshold) else decisions.threshold
        rates = {key: getattr(decisions, key) for key in ("regret", "precision", "recall", "f1")}
        seeds.append({"seed": seed, **rewards, "threshold": threshold, **rates})
    return {
        "family": item.family,
        "strategy": item.triple.free,
        "before": item.triple.free in source.before.values(),
        "budget": item.budget,
        "seeds": seeds,
    }


def _make_pathology_rows(source: Source, linked: LinkedEpisodes) -> list[dict[str, Any]]:
    rows = []
    for (name, owner), count in source.pathologies.items():
        place = None
        if count.worst is not None:
            place = {
                "episode": count.worst.record.episode_id,
                "place": f"{count.worst.agent_id}, turn {count.worst.turn}",
                "file": _relative_path(count.worst.file, source.folders),
                "href": linked.link(count.worst),
            }
        counts = {"found": count.found, "possible": count.possible}
        rows.append({"name": name, "meaning": MEANINGS[name], "owner": owner, **counts, "worst": place})
    return rows


def _relative_path(file: Path, folders: Sequence[Path]) -> str:
    """Return a file's path in its folder, and with the folder's name where there are several folders.

    A page must not name the folders of the machine that wrote it.
    """
    folder = next((folder for folder in folders if file.is_relative_to(folder)), None)
    if folder is None:
        return file.name
    return file.relative_to(folder if len(folders) == 1 else folder.parent).as_posix()


def _make_job_data(job: JobLog) -> dict[str, Any]:
    return {
        "variant": job.variant,
        "seed": job.seed,
        "steps": len(job.rl_rows),
        "sampled": job.sampled_tokens,
        "scored": job.scored_tokens,
        "trained": job.trained_tokens,
        "compute": job.compute_tokens,
        "cpu_seconds": job.cpu_seconds,
    }


def _make_learning_data(curves: Sequence[MetricCurve]) -> dict[str, Any]:
    groups = []
    for name, metrics in group_metrics(curves).items():
        panels = [{"metric": metric, "title": get_metric_title(metric)} for metric in metrics]
        groups.append({"name": name, "panels": panels})
    series = []
    for curve in curves:
        bins = []
        for b in curve.bins:
            seeds = [round_number(value) for value in b.seeds]
            bins.append([round_number(b.step), round_number(b.sampled), _make_interval(b.estimate), seeds])
        series.append({"variant": curve.variant, "metric": curve.metric, "seeds": curve.seeds, "bins": bins})
    variants = list(dict.fromkeys(curve.variant for curve in curves))
    return {"groups": groups, "variants": variants, "series": series}


def _make_interval(
    estimate: Estimate | None, within: tuple[float, float] = (-math.inf, math.inf)
) -> list[float | None] | None:
    """Return mean and ends. The ends are cut to the range of the quantity, which a t interval may exceed."""
    if estimate is None or not math.isfinite(estimate.mean):
        return None
    low, high = within
    ends = [end if math.isnan(end) else min(max(end, low), high) for end in (estimate.low, estimate.high)]
    return [round_number(value) for value in (estimate.mean, *ends)]


# Files


def _list_files(report: SourceReport, data: Mapping[str, Any], prefix: str) -> Iterator[ReportFiles]:
    """Yield the figures and tables of one source. Their names begin with the prefix."""
    source = report.source
    rows = report.findings.rows

    def pictures(name: str, draw: Callable[[Sequence[Path]], object]) -> ReportFiles:
        return ReportFiles([f"{prefix}{name}.png", f"{prefix}{name}.svg"], draw)

    def table(name: str, write: Callable[[Path], object]) -> ReportFiles:
        return ReportFiles([f"{prefix}{name}.csv"], lambda paths: write(paths[0]))

    curves = report.learning_curves
    if curves:
        metrics = list(chain.from_iterable(group_metrics(curves).values()))[:FIGURE_METRICS]
        yield pictures("learning", partial(draw_learning_curves, curves, metrics))
        yield table("learning", partial(write_learning_csv, curves))
    if data["rows"]:
        for cost in source.settings.compared:
            name = f"frontier_{re.sub(r'[^A-Za-z0-9]+', '_', cost)}"
            yield pictures(name, partial(draw_frontiers, rows, source.settings.labels, source.settings.aside, cost))
        yield table("results", partial(write_results, rows, source.settings))
    if data["delegation"]:
        yield pictures("delegation", partial(draw_delegation, data["delegation"]))
        yield table("delegation", partial(_write_delegation, data["delegation"]))
    if data["decisions"]:
        yield table("decisions", partial(_write_decisions, data["decisions"]))
    if data["pathologies"]:
        yield table("pathologies", partial(_write_pathologies, data["pathologies"]))


def _write_delegation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    keys = ["family", "size", "strategy", "before"]
    missing = [None, None, None]
    lines = [[*(row[key] for key in keys), *(row["share"] or missing), *(row["clones"] or missing)] for row in rows]
    write_csv(path, [*keys, *interval_heads(["share", "clones"])], lines)


def _write_decisions(decisions: Sequence[Mapping[str, Any]], path: Path) -> None:
    keys = ["family", "strategy", "budget"]
    lines = []
    for decision in decisions:
        lines += [[*(decision[key] for key in keys), *seed.values()] for seed in decision["seeds"]]
    write_csv(path, [*keys, *decisions[0]["seeds"][0]], lines)


def _write_pathologies(pathologies: Sequence[Mapping[str, Any]], path: Path) -> None:
    lines = []
    for pathology in pathologies:
        worst = pathology["worst"] or {"file": "", "episode": "", "place": ""}
        counts = [pathology[key] for key in ("name", "owner", "found", "possible")]
        lines.append([*counts, worst["file"], worst["episode"], worst["place"]])
    heads = ["pathology", "of", "found", "possible", "worst_file", "worst_episode", "worst_place"]
    write_csv(path, heads, lines)
