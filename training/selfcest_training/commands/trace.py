"""`selfcest trace`: an episode's tree in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import RecordError, did_you_mean
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.render import render_record
from selfcest_training.evaluation.results import read_results
from selfcest_training.evaluation.words import at_most


def print_trace(
    file: Path,
    episode_id: str | None,
    console: Console,
    *,
    texts: bool = False,
    strategy: str | None = None,
    wrong: bool = False,
) -> None:
    """Print task, tree, cost and reward of one episode, and with `texts` all that its agents wrote.

    Args:
        file: a JSON-lines file of episodes, or a study's folder or `results.jsonl`.
        episode_id: which; `None`: the last.
        console: where to.
        texts: see above.
        strategy, wrong: of a study only episodes of this strategy, and only those whose answer was not right.

    Raises:
        RecordError: no such file or episode.
    """
    file = file / "results.jsonl" if file.is_dir() else file
    if not file.is_file():
        raise RecordError(f"there is no file {file}; give the episodes.jsonl of a run, or the folder of a study")
    if file.name == "results.jsonl":
        found = _of_study(file, strategy, wrong)
    elif strategy is None and not wrong:
        found = (("", record) for record in read_episodes(file))
    else:
        raise RecordError(f"{file} is no study's results.jsonl, and --strategy and --wrong choose among a study's")
    ids, last = dict[str, None](), None
    for played, record in found:
        ids[record.episode_id] = None
        if episode_id in (None, record.episode_id):
            last = played, record
    if last is None and episode_id is not None:
        raise RecordError(f"{file} holds no such episode '{episode_id}'.{did_you_mean(episode_id, ids)}")
    if last is None:
        raise RecordError(f"{file} holds no {'wrong answer' if wrong else 'episode'}")
    played, record = last
    console.print(f"{played}{render_record(record, texts=texts)}", markup=False, highlight=False, soft_wrap=True)


def _of_study(file: Path, strategy: str | None, wrong: bool) -> Iterator[tuple[str, EpisodeRecord]]:
    """The episodes whose answers count, each with what it was played as."""
    strategies = dict[str, None]()
    for result in read_results(file, whole=True):
        place = result.place
        strategies[place.strategy] = None
        if strategy in (None, place.strategy) and not (wrong and result.grade.correct):
            verdict = "right" if result.grade.correct else "wrong"
            played = f"{place.strategy} on {place.family} {place.size}, {at_most(place.budget)}, seed {place.seed}"
            yield f"{played}: {verdict}\n", result.episodes[result.chosen]
    if strategy is not None and strategy not in strategies:
        known = ", ".join(strategies)
        raise RecordError(f"{file} has no strategy '{strategy}' ({known}).{did_you_mean(strategy, strategies)}")
