"""`selfcest trace`: the tree of an episode as text or as a figure, or many episodes as a page."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from selfcest_env.errors import RecordError, SelfcestError, did_you_mean
from selfcest_env.plugin import only_trusted
from selfcest_env.record import read_episodes
from selfcest_env.render import render_record
from selfcest_env.replay import replayed_episode
from selfcest_env.rules import Rules
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_eval.html.page import Page
from selfcest_eval.html.playing import Renderer
from selfcest_eval.html.viewer import EpisodeView, SchemeCredit, make_viewer_page
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import read_results
from selfcest_training.credit import Credit, NotInRecordsError, make_assigner
from selfcest_training.credit.offline import assign_stored, group_episodes
from selfcest_training.files import atomic_write, check_output_file, report_read_errors, write_text
from selfcest_training.printing import print_text

# A plain install prints trees without the packages that these modules import.
if TYPE_CHECKING:
    from rich.console import Console

    from selfcest_agents.language import Language


def find_runs_files(files: Sequence[Path]) -> list[Path]:
    """Return the files, with the episodes of all jobs in place of the folder of a run or of a job.

    Raises:
        RecordError: a run has stored no episodes yet.
    """
    episode_files: list[Path] = []
    for file in files:
        stored = sorted(file.glob("*/seed*/episodes.jsonl")) or sorted(file.glob("episodes.jsonl"))
        if (file / "config.yaml").is_file() and not stored:
            raise RecordError(f"{file} is a run without episodes so far; it stores some with each step of RL")
        # The folder of a study stands for its results.
        episode_files += [file] if (file / "results.jsonl").is_file() or not stored else stored
    # A file that is named twice would count twice in its groups.
    return list({file.absolute(): file for file in episode_files}.values())


def name_jobs(files: Sequence[Path]) -> list[str]:
    """Return the path of each file below the folder that all share, without a file name that all have; "" for one file.

    The jobs of a run are named as VARIANT/seedN.
    """
    if len(files) == 1:
        return [""]
    paths = [file.absolute() for file in files]
    if len({path.name for path in paths}) == 1:
        paths = [path.parent for path in paths]
        shared = os.path.commonpath(paths)
    else:
        shared = os.path.commonpath([path.parent for path in paths])
    return [path.relative_to(shared).as_posix() for path in paths]


def find_newest(files: Sequence[Path]) -> Path:
    """Return the file that was written last."""
    return max(files, key=lambda file: file.stat().st_mtime) if len(files) > 1 else files[0]


def find_file_of(files: Sequence[Path], episode_id: str | None) -> Path:
    """Return the one file of a run that holds an episode; without an id, the file that was written last.

    Raises:
        RecordError: no file holds such an episode, or several do.
    """
    if episode_id is None or len(files) == 1:
        return find_newest(files)
    episode_ids: dict[str, None] = {}
    matching = []
    for file in files:
        # The warning about a cut line comes when the episode is shown.
        file_ids = [view.record.episode_id for view in _read_views(file, None, False, on_cut=lambda line: None)]
        episode_ids.update(dict.fromkeys(file_ids))
        if episode_id in file_ids:
            matching.append(file)
    if not matching:
        raise _make_missing_error(episode_id, episode_ids)
    if len(matching) > 1:
        raise RecordError(
            f"{len(matching)} files hold an episode '{episode_id}': {', '.join(map(str, matching))}; give one of them"
        )
    return matching[0]


def print_trace(
    file: Path,
    episode_id: str | None,
    console: Console,
    *,
    texts: bool = False,
    strategy: str | None = None,
    wrong: bool = False,
) -> None:
    """Print the `trace_text` of one episode."""
    print_text(console, trace_text(file, episode_id, texts=texts, strategy=strategy, wrong=wrong))


def trace_text(
    file: Path, episode_id: str | None, *, texts: bool = False, strategy: str | None = None, wrong: bool = False
) -> str:
    """Return the task, tree, cost and reward of one episode.

    Args:
        file: JSON-lines file of episodes, or folder or `results.jsonl` of a study.
        episode_id: id of the episode; `None`: the last episode.
        texts: also return the full texts of all agents.
        strategy: strategy of the study that the episode must be of; `None`: any.
        wrong: the episode must have no right answer; for a study only.

    Raises:
        RecordError: there is no such file or episode.
    """
    view = _find_episode(file, episode_id, strategy, wrong)
    text = render_record(view.record, texts=texts)
    return f"{view.played_as}\n{text}" if view.played_as else text


def write_figures(
    file: Path,
    episode_id: str | None,
    console: Console,
    *,
    svg: Path | None = None,
    png: Path | None = None,
    gif: Path | None = None,
    strategy: str | None = None,
    wrong: bool = False,
) -> None:
    """Write figures of one episode and print their paths.

    Args:
        file, episode_id, strategy, wrong: see `trace_text`.
        console: output for the paths.
        svg, png: figures of the tree.
        gif: animation of the tree, which grows turn by turn.

    Raises:
        ConfigError: a figure cannot be written to its path.
        RecordError: there is no such file or episode.
    """
    from selfcest_eval.html import figure  # imports matplotlib

    for option, out in (("--svg", svg), ("--png", png), ("--gif", gif)):
        if out is not None:
            check_output_file(option, out)
    view = _find_episode(file, episode_id, strategy, wrong)
    record = view.record
    for out, render in ((svg, figure.draw_svg), (png, figure.draw_png), (gif, figure.draw_gif)):
        if out is not None:
            content = render(record, view.outcome)
            with atomic_write(out) as partial:
                partial.write_bytes(content.encode() if isinstance(content, str) else content)
            kilobytes = out.stat().st_size / 1e3
            print_text(console, f"{out}: episode {record.episode_id}, {kilobytes:.0f} kB")


def write_page(
    files: Sequence[Path],
    out: Path,
    console: Console,
    *,
    episode_id: str | None = None,
    schemes: Sequence[str] = (),
    strategy: str | None = None,
    wrong: bool = False,
    trusted: Sequence[str] = (),
) -> None:
    """Write episodes as one page and print its path and size.

    Args:
        files: JSON-lines files of episodes, or studies; see `trace_text`.
        out: path of the page; an existing page is replaced.
        console: output for path and size.
        episode_id: id of the one episode that is shown with its replays; `None`: all episodes.
        schemes: names of credit schemes whose advantages are shown. The episodes of a study have no credit, because
            they are not in groups.
        strategy, wrong: see `trace_text`.
        trusted: modules whose plug-ins the config of a file's run may name.

    Raises:
        ConfigError: a scheme is unknown, or the page cannot be written to its path.
        RecordError: there is no such file or episode, or no episode at all.
        NotInRecordsError: the files lack the replays of every scheme. If they lack those of some schemes, these are
            left out with a warning and a line on the page.
    """
    check_output_file("--html", out)
    assigners = [make_assigner(name, {}, where="--credit") for name in schemes]
    views: list[EpisodeView] = []
    renderers: list[Renderer] = []
    credits_by_scheme: list[list[Sequence[Credit]]] = [[] for _ in schemes]  # of each file, by the position of a scheme
    left_out: list[str] = []
    for number, (file, file_job) in enumerate(zip(files, name_jobs(files), strict=True)):
        cut_lines: list[str] = []
        file_views = list(_read_views(file, strategy, wrong, on_cut=cut_lines.append))
        for line in cut_lines:
            _warn(line + (", and its group has no credit" if schemes else ""))
        records = [view.record for view in file_views]
        for file_credits, assigner in zip(credits_by_scheme, assigners, strict=True):
            try:
                stored = group_episodes(records, str(file), cut=bool(cut_lines))
                file_credits.append(assign_stored(assigner, stored))
            except NotInRecordsError as error:
                file_credits.append(())
                left_out.append(str(error))
        file_name = str(file) if len(files) > 1 else ""
        for view in file_views:
            job = ": ".join(filter(None, (file_job, view.job)))
            views.append(replace(view, file=number, played_as=view.played_as or file_name, job=job))
        with only_trusted(trusted):
            renderers += renderers_of(file)
    if not views:
        raise RecordError(f"{', '.join(map(str, files))}: there is no {'wrong answer' if wrong else 'episode'} to show")
    if episode_id is not None:
        views = _with_replays(views, episode_id)
    shown_schemes = []
    for name, assigner, credits in zip(schemes, assigners, credits_by_scheme, strict=True):
        if any(credits):
            shown_schemes.append(SchemeCredit(name, assigner.formula, credits))
    if schemes and not shown_schemes:
        raise NotInRecordsError("; ".join(left_out))
    for line in left_out:
        _warn(f"left out: {line}")
    page = make_viewer_page(_make_title(files), views, renderers, shown_schemes, left_out)
    save_page(page, out, len(views), console)


def _make_title(files: Sequence[Path]) -> str:
    title = ", ".join(str(file) for file in files[:3])
    return title if len(files) <= 3 else f"{title} and {len(files) - 3} more"


def _with_replays(views: Sequence[EpisodeView], episode_id: str) -> list[EpisodeView]:
    """Return an episode and its replays. Raises `RecordError` if there is no such episode."""
    matching = []
    for view in views:
        if episode_id in (view.record.episode_id, replayed_episode(view.record.episode_id)):
            matching.append(view)
    if not matching:
        episode_ids = dict.fromkeys(view.record.episode_id for view in views)
        raise _make_missing_error(episode_id, episode_ids)
    return matching


def _make_missing_error(episode_id: str, episode_ids: Mapping[str, None]) -> RecordError:
    return RecordError(f"no file holds an episode '{episode_id}'.{did_you_mean(episode_id, episode_ids)}")


def save_page(page: Page, out: Path, num_episodes: int, console: Console) -> None:
    """Write a page of episodes and print its path and size."""
    write_text(out, page.render())
    episodes = f"{num_episodes} episode" + "s" * (num_episodes != 1)
    megabytes = out.stat().st_size / 1e6
    print_text(console, f"{out}: {episodes}, {megabytes:.1f} MB")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _find_episode(file: Path, episode_id: str | None, strategy: str | None, wrong: bool) -> EpisodeView:
    """Return the last episode of the file, or the last with this id."""
    episode_ids: dict[str, None] = {}
    last_view = None
    cut_lines: list[str] = []
    for view in _read_views(file, strategy, wrong, on_cut=cut_lines.append):
        episode_ids[view.record.episode_id] = None
        if episode_id in (None, view.record.episode_id):
            last_view = view
    if last_view is None and episode_id is not None:
        raise RecordError(f"{file} holds no such episode '{episode_id}'.{did_you_mean(episode_id, episode_ids)}")
    if last_view is None:
        raise RecordError(f"{file} holds no {'wrong answer' if wrong else 'episode'}")
    for line in cut_lines:
        _warn(line)
    return last_view


def _read_views(file: Path, strategy: str | None, wrong: bool, on_cut: Callable[[str], None]) -> Iterator[EpisodeView]:
    """Yield the episodes of a file in its order; `on_cut` receives a warning if the last line is incomplete."""
    with report_read_errors(file):
        file = file / "results.jsonl" if file.is_dir() else file
        if not file.is_file():
            raise RecordError(f"there is no file {file}; give the episodes.jsonl of a run, or the folder of a study")
        if file.name == "results.jsonl":
            yield from _read_study_views(file, strategy, wrong)
        elif strategy is None and not wrong:
            yield from (EpisodeView(record) for record in read_episodes(file, on_cut))
        else:
            raise RecordError(f"{file} is not the results.jsonl of a study; leave out --strategy and --wrong")


def _read_study_views(file: Path, strategy: str | None, wrong: bool) -> Iterator[EpisodeView]:
    """Yield the counted episode of each result, with its strategy, eval set, budget, seed and verdict."""
    strategies: dict[str, None] = {}
    for result in read_results(file, whole=True):
        place = result.place
        strategies[place.strategy] = None
        if strategy in (None, place.strategy) and not (wrong and result.grade.correct):
            verdict = "right" if result.grade.correct else "wrong"
            budget = at_most(place.budget)
            played_as = f"{place.strategy} on {place.family} {place.size}, {budget}, seed {place.seed}: {verdict}"
            yield EpisodeView(
                result.episodes[result.chosen],
                result.grade.correct,
                played_as,
                job=f"{place.strategy}, {budget}",
            )
    if strategy is not None and strategy not in strategies:
        raise RecordError(
            f"{file} has no strategy '{strategy}'.{did_you_mean(strategy, strategies)} Its strategies are "
            f"{', '.join(strategies)}"
        )


def renderers_of(file: Path) -> list[Renderer]:
    """Return renderers for the trace page of a file. The page uses the first one that can replay an episode.

    They have the rules of the file's run, if it belongs to one, and those of the built-in languages and protocols.
    """
    from selfcest_agents.language import language_of
    from selfcest_agents.tiny import TinyLanguage
    from selfcest_eval.play.policies import MINIMAL_LIMITS
    from selfcest_training.config_file import load_stored_config

    renderers: list[Renderer] = []
    # Without the run's rules the page shows less, but still all episodes.
    with suppress(SelfcestError, OSError):
        config = _find_run_config(file)
        if config is not None:
            renderers.append(_make_language_renderer(language_of(load_stored_config(config).model)))
    renderers.append(_make_language_renderer(TinyLanguage()))
    for protocol in (HermesProtocol(), TerseProtocol()):
        for counter in (WordCounter(), ByteCounter()):
            renderers.append(Renderer(Rules(MINIMAL_LIMITS, protocol, counter)))
    return renderers


def _find_run_config(file: Path) -> Path | None:
    """Return RUN/config.yaml for RUN/FILE, RUN/VARIANT/seedN/FILE or RUN/VARIANT/seedN/FOLDER/FILE, if there is one."""
    path = file.absolute()
    folder = path if path.is_dir() else path.parent
    if re.fullmatch(r"seed\d+", folder.parent.name):  # of an evaluation
        folder = folder.parent
    in_job = re.fullmatch(r"seed\d+", folder.name) is not None
    config = (folder.parents[1] if in_job else folder) / "config.yaml"
    return config if config.is_file() else None


def _make_language_renderer(language: Language) -> Renderer:
    from selfcest_eval.play.policies import MINIMAL_LIMITS

    return Renderer(language.rules(MINIMAL_LIMITS), language.codec.decode)
