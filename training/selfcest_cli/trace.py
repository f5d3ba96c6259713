"""`selfcest trace`: an episode's tree in words or as a figure, or many as a page to look at."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import warn

from selfcest_env.errors import ConfigError, RecordError, SelfcestError, did_you_mean
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
from selfcest_eval.html.viewer import EpisodeView, SchemeCredit, viewer_page
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import read_results
from selfcest_training.credit import Credit, NotInRecordsError, make_assigner
from selfcest_training.credit.offline import apply, in_groups
from selfcest_training.files import atomic_write, readable, write_text

# A plain install has none of what these import, and prints trees.
if TYPE_CHECKING:
    from rich.console import Console

    from selfcest_agents.language import Language


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
    text = trace_text(file, episode_id, texts=texts, strategy=strategy, wrong=wrong)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def trace_text(
    file: Path, episode_id: str | None, *, texts: bool = False, strategy: str | None = None, wrong: bool = False
) -> str:
    """Task, tree, cost and reward of one episode, and with `texts` all that its agents wrote.

    Args:
        file: a JSON-lines file of episodes, or a study's folder or `results.jsonl`.
        episode_id: which; `None`: the last.
        texts: see above.
        strategy, wrong: of a study only episodes of this strategy, and only those whose answer was not right.

    Raises:
        RecordError: no such file or episode.
    """
    last = _last(file, episode_id, strategy, wrong)
    return f"{last.played_as}\n" * bool(last.played_as) + render_record(last.record, texts=texts)


def write_figures(
    file: Path,
    episode_id: str | None,
    console: Console,
    *,
    svg: Path | None = None,
    gif: Path | None = None,
    strategy: str | None = None,
    wrong: bool = False,
) -> None:
    """Draw one episode, and say where: its tree as an SVG, the tree growing turn by turn as a GIF.

    Raises:
        ConfigError: a place for a figure that cannot be.
        RecordError: no such file or episode.
    """
    from selfcest_eval.html import figure  # matplotlib, whose letters a GIF has

    for option, out in (("--svg", svg), ("--gif", gif)):
        if out is not None:
            check_place(option, out)
    record = _last(file, episode_id, strategy, wrong).record
    for out, render in ((svg, figure.svg), (gif, figure.gif)):
        if out is not None:
            drawn = render(record)
            with atomic_write(out) as partial:
                partial.write_bytes(drawn.encode() if isinstance(drawn, str) else drawn)
            size = out.stat().st_size / 1e3
            line = f"{out}: episode {record.episode_id}, {size:.0f} kB"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def check_place(option: str, out: Path) -> None:
    """Raises `ConfigError` if no file can be written there."""
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir():
        what = "page" if option == "--html" else "figure"
        raise ConfigError(f"{option} {out} is no place for a {what}: expected a file's name in a folder that is there")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{option} {out} cannot be written: {folder} is not yours to write in; name another folder")


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
    """Write episodes as one page, and say where and how large it is.

    Args:
        files: as in `print_trace`, one or more.
        out: the page; it is replaced if it is there.
        console: where to.
        episode_id: only this episode and its replays.
        schemes: credit to show, by name. Of a study there is none: its episodes are no groups.
        strategy, wrong: see `print_trace`.
        trusted: modules whose plug-ins the config of a file's run may name.

    Raises:
        ConfigError: a scheme, or a place for the page, that cannot be.
        RecordError: no such file or episode, or none at all.
        NotInRecordsError: schemes were named, and the files do not hold enough for any of them. One among others is
            left out, with a warning and a line on the page.
    """
    check_place("--html", out)
    assigners = [make_assigner(name, {}, where="--credit") for name in schemes]
    shown, renderers = list[EpisodeView](), list[Renderer]()
    said: list[list[Sequence[Credit]]] = [[] for _ in schemes]
    left_out: list[str] = []
    for number, file in enumerate(files):
        cut: list[str] = []
        here = list(_episodes(file, strategy, wrong, on_cut=cut.append))
        for line in cut:
            _warn(line + (", and its group has no credit" if schemes else ""))
        for credits, assigner in zip(said, assigners, strict=True):
            try:
                credits.append(apply(assigner, in_groups([item.record for item in here], str(file), cut=bool(cut))))
            except NotInRecordsError as error:
                credits.append(())
                left_out.append(str(error))
        several = str(file) if len(files) > 1 else ""
        shown += [replace(item, file=number, played_as=item.played_as or several) for item in here]
        with only_trusted(trusted):
            renderers += renderers_of(file)
    if not shown:
        raise RecordError(f"{', '.join(map(str, files))}: no {'wrong answer' if wrong else 'episode'} there to show")
    if episode_id is not None:
        ids = dict.fromkeys(item.record.episode_id for item in shown)
        shown = [
            item for item in shown if episode_id in (item.record.episode_id, replayed_episode(item.record.episode_id))
        ]
        if not shown:
            raise RecordError(f"no file holds an episode '{episode_id}'.{did_you_mean(episode_id, ids)}")
    told = [
        SchemeCredit(name, assigner.formula, credits)
        for name, assigner, credits in zip(schemes, assigners, said, strict=True)
        if any(credits)
    ]
    if schemes and not told:
        raise NotInRecordsError("; ".join(left_out))
    for line in left_out:
        _warn(f"left out: {line}")
    title = ", ".join(str(file) for file in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    save_page(viewer_page(title, shown, renderers, told, left_out), out, len(shown), console)


def save_page(page: Page, out: Path, episodes: int, console: Console) -> None:
    write_text(out, page.render())
    many = f"{episodes} episode" + "s" * (episodes != 1)
    size = out.stat().st_size / 1e6
    console.print(f"{out}: {many}, {size:.1f} MB", markup=False, highlight=False, soft_wrap=True)


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _last(file: Path, episode_id: str | None, strategy: str | None, wrong: bool) -> EpisodeView:
    """The last episode, or the last of an id."""
    ids, last, cut = dict[str, None](), None, list[str]()
    for item in _episodes(file, strategy, wrong, on_cut=cut.append):
        ids[item.record.episode_id] = None
        if episode_id in (None, item.record.episode_id):
            last = item
    if last is None and episode_id is not None:
        raise RecordError(f"{file} holds no such episode '{episode_id}'.{did_you_mean(episode_id, ids)}")
    if last is None:
        raise RecordError(f"{file} holds no {'wrong answer' if wrong else 'episode'}")
    for line in cut:
        _warn(line)
    return last


def _episodes(
    file: Path, strategy: str | None, wrong: bool, on_cut: Callable[[str], None] = warn
) -> Iterator[EpisodeView]:
    """The episodes of a file, in its order."""
    with readable(file):
        file = file / "results.jsonl" if file.is_dir() else file
        if not file.is_file():
            raise RecordError(f"there is no file {file}; give the episodes.jsonl of a run, or the folder of a study")
        if file.name == "results.jsonl":
            yield from _of_study(file, strategy, wrong)
        elif strategy is None and not wrong:
            yield from (EpisodeView(record) for record in read_episodes(file, on_cut))
        else:
            raise RecordError(f"{file} is no study's results.jsonl, and --strategy and --wrong choose among a study's")


def renderers_of(file: Path) -> list[Renderer]:
    """The rules that a file's episodes may have been played by: those of its run or study, and those of what is built
    in."""
    from selfcest_agents.language import language_of
    from selfcest_agents.tiny import TinyLanguage
    from selfcest_eval.play.policies import LEAST
    from selfcest_training.config_file import load_stored_config

    renderers = list[Renderer]()
    with suppress(SelfcestError, OSError):  # a page does without
        run = _config_of(file)
        if run is not None:
            renderers.append(_of_language(language_of(load_stored_config(run).model)))
    renderers.append(_of_language(TinyLanguage()))
    renderers += [Renderer(Rules(LEAST, HermesProtocol(), counter)) for counter in (WordCounter(), ByteCounter())]
    renderers += [Renderer(Rules(LEAST, TerseProtocol(), counter)) for counter in (WordCounter(), ByteCounter())]
    return renderers


def _config_of(file: Path) -> Path | None:
    """The config of the run RUN that a file RUN/VARIANT/seedN/FILE or RUN/FILE belongs to. No folder above is read."""
    path = file.absolute()
    folder = path if path.is_dir() else path.parent
    in_job = re.fullmatch(r"seed\d+", folder.name) is not None
    config = (folder.parents[1] if in_job else folder) / "config.yaml"
    return config if config.is_file() else None


def _of_language(language: Language) -> Renderer:
    from selfcest_eval.play.policies import LEAST

    return Renderer(language.rules(LEAST), language.codec.decode)


def _of_study(file: Path, strategy: str | None, wrong: bool) -> Iterator[EpisodeView]:
    """The episodes whose answers count, each with what it was played as."""
    strategies = dict[str, None]()
    for result in read_results(file, whole=True):
        place = result.place
        strategies[place.strategy] = None
        if strategy in (None, place.strategy) and not (wrong and result.grade.correct):
            verdict = "right" if result.grade.correct else "wrong"
            played = f"{place.strategy} on {place.family} {place.size}, {at_most(place.budget)}, seed {place.seed}"
            yield EpisodeView(result.episodes[result.chosen], result.grade.correct, f"{played}: {verdict}")
    if strategy is not None and strategy not in strategies:
        known = ", ".join(strategies)
        raise RecordError(f"{file} has no strategy '{strategy}' ({known}).{did_you_mean(strategy, strategies)}")
