"""What a report is made of: runs and studies as their folders hold them, read and never written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfcest_agents.server_counts import format_server_counts
from selfcest_env.errors import ConfigError
from selfcest_env.structure import to_builtins
from selfcest_eval.play.config import StudyConfig, load_stored_study
from selfcest_eval.play.results import Result, read_results, read_unplayable
from selfcest_eval.play.unplayable import leave_out, unplayable_lines
from selfcest_eval.report.jobs import JobLog, given_up_lines, read_jobs, warm_start_warnings
from selfcest_eval.report.pathologies import Count, Pathologies
from selfcest_eval.report.reading import Reading, check_places, reading_of
from selfcest_eval.report.training_run import (
    AFTER_RL,
    in_order,
    parts_of,
    results_of,
    server_folders,
    study_of,
    variants_of,
)
from selfcest_eval.stats.decision_table import FamilyDecisions, find_decisions, find_forced_triples
from selfcest_eval.stats.table import Curves, curves_of
from selfcest_training.config import EvalSet, RunConfig
from selfcest_training.config_file import load_stored_config
from selfcest_training.credit.offline import read_groups
from selfcest_training.files import readable
from selfcest_training.servers import read_counts
from selfcest_training.session import read_sessions

_OF_A_FOLDER = ("name", "output", "seeds", "workers", "logging")  # keys in which runs of one experiment may differ


@dataclass(frozen=True)
class Source:
    """A study, a run, or several runs that differ in nothing but their seeds.

    Attributes:
        name: of the folder; of several, their names joined.
        folders: where it lies.
        study: as what its results are read.
        run: the config of a training run, with the seeds of all folders; `None`: a study.
        cells, reading, decisions: of what was evaluated so far; no cells where nothing was.
        final: strategies that are compared in few words: of a run every variant as trained and greedy, of a study those
            that are no forced choice.
        before: of a run, by strategies of `final`, the same variant before RL.
        jobs: of a run.
        pathologies: by pathology and strategy, or variant for those of training groups.
        warnings: what a reader must know first.
        sessions: who wrote the folders.
    """

    name: str
    folders: Sequence[Path]
    study: StudyConfig
    run: RunConfig | None
    cells: Sequence[Curves]
    reading: Reading
    decisions: Sequence[FamilyDecisions]
    final: Sequence[str]
    before: Mapping[str, str]
    jobs: Sequence[JobLog]
    pathologies: Mapping[tuple[str, str], Count]
    warnings: Sequence[str]
    sessions: Sequence[Mapping[str, Any]]

    @property
    def short_names(self) -> dict[str, str]:
        """Names of strategies for a page, on which a variant is the trained one unless it says otherwise."""
        if self.run is None:
            return dict(self.reading.labels)
        return {name: label.replace(AFTER_RL, "") for name, label in self.reading.labels.items()}


def read_sources(folders: Sequence[Path]) -> list[Source]:
    """Every folder, runs that differ in their seeds alone as one.

    Raises:
        ConfigError: a folder holds neither a run nor a study, or is named twice.
        RecordError: a file of it is damaged; the message names file and line.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"a folder is named twice among {', '.join(map(str, folders))}; name each once")
    studies, runs = list[Source](), dict[str, list[RunConfig]]()
    for folder in folders:
        config = config_of(folder)
        if isinstance(config, StudyConfig):
            with readable(folder):
                studies.append(read_study(config))
        else:
            runs.setdefault(_key(config, runs), []).append(config)
    with readable(folders[0]):
        return [*(read_run(same) for same in runs.values()), *studies]


def config_of(folder: Path) -> RunConfig | StudyConfig:
    """The stored config of a folder, wherever it has been moved to.

    Raises:
        ConfigError: the folder holds neither a run nor a study.
    """
    if folder.name != folder.resolve().name:  # `.`, `..` and links: beside them lies something else
        folder = folder.resolve()
    output, name = str(folder.parent), folder.name
    with readable(folder):
        if (folder / "study.yaml").is_file():
            return replace(load_stored_study(folder / "study.yaml"), output=output, name=name)
        if (folder / "config.yaml").is_file():
            return replace(load_stored_config(folder / "config.yaml"), output=output, name=name)
    raise ConfigError(f"{folder} holds no config.yaml of a run and no study.yaml; give the folder of one of them")


def _key(config: RunConfig, runs: Mapping[str, Sequence[RunConfig]]) -> str:
    """Equal for runs that differ in their seeds alone; two with a seed in common are two."""
    same = repr({key: value for key, value in to_builtins(config).items() if key not in _OF_A_FOLDER})
    taken = {seed for other in runs.get(same, ()) for seed in other.seeds}
    return f"{same} {config.folder}" if taken & set(config.seeds) else same


def read_run(configs: Sequence[RunConfig], *, for_page: bool = True) -> Source:
    """Read a run, or several runs that differ in nothing but their seeds.

    Args:
        configs: of the runs.
        for_page: whether to look for pathologies in every episode, and to accept that nothing has been evaluated yet.

    Raises:
        ConfigError: nothing has been evaluated.
        RecordError: a file is damaged.
    """
    config = replace(configs[0], seeds=tuple(seed for one in configs for seed in one.seeds))
    # A study has eval sets, a run need not: then there are no results, and the study only names strategies and costs.
    eval_sets = config.evaluation.eval_sets or tuple(EvalSet(name, "any") for name in config.tasks)
    study = study_of(replace(config, evaluation=replace(config.evaluation, eval_sets=eval_sets)))
    jobs = [job for one in configs for job in read_jobs(one)]
    variants_in_order = list(config.variants)
    jobs.sort(key=lambda job: variants_in_order.index(job.variant))
    results, notes = _evaluated(configs, trained=for_page and bool(jobs))
    variants = variants_of(config, {result.place.strategy for result in results})
    before = {after: earlier for after, earlier in variants.items() if earlier is not None}
    able = [
        label for variant, label in zip(config.variants, variants, strict=True) if config.limits_of(variant).delegation
    ]
    return Source(
        name=" + ".join(one.name for one in configs),
        folders=[one.folder for one in configs],
        study=study,
        run=config,
        cells=curves_of(in_order(study, results)) if results else [],
        reading=reading_of(study, subjects=able[::-1] or tuple(variants)),
        decisions=find_decisions(study, results) if results else [],
        final=list(variants),
        before=before,
        jobs=jobs,
        pathologies=_pathologies_of_run(configs, {*variants, *before.values()}) if for_page else {},
        warnings=[
            *notes,
            *warm_start_warnings(jobs, config.compute_tokens),
            *given_up_lines(jobs),
            *format_server_counts(read_counts(folder for one in configs for folder in server_folders(one))),
        ],
        sessions=[line for one in configs for line in read_sessions(one.folder)],
    )


def _evaluated(configs: Sequence[RunConfig], trained: bool) -> tuple[list[Result], list[str]]:
    """What all runs have played, of the strategies that all have; nothing of a run that is still training."""
    if not configs[0].evaluation.eval_sets:
        return [], ["evaluation.eval_sets is empty, so nothing was evaluated"]
    results, notes = list[list[Result]](), list[str]()
    for config in configs:
        try:
            found, said = results_of(config)
        except ConfigError as error:
            if not trained:
                raise
            found, said = [], [str(error)]
        notes += said
        if found:
            results.append(found)
    shared = set.intersection(*({r.place.strategy for r in found} for found in results)) if results else set()
    return [r for found in results for r in found if r.place.strategy in shared], notes


def read_study(config: StudyConfig, *, crossed: bool | None = None, for_page: bool = True) -> Source:
    """Read a study.

    Args:
        config: of the study.
        crossed: see `reading_of`.
        for_page: whether to look for pathologies in every episode.

    Raises:
        ConfigError: the study is not finished.
        RecordError: a file is damaged, or the config lacks what it holds.
    """
    file = config.folder / "results.jsonl"
    if not file.is_file():
        raise ConfigError(f"{config.folder} holds no results.jsonl: the study is not finished; add --resume to go on")
    every = list(read_results(file, whole=bool(find_forced_triples(config)), experts=True))
    unplayable = read_unplayable(file)
    check_places(config, every, file)
    results = leave_out(every, unplayable)
    reading = reading_of(config, crossed=crossed)
    final = [name for name in config.strategies if name not in reading.aside]
    pathologies = Pathologies()
    if for_page:
        _look(pathologies, file, set(final))
    return Source(
        name=config.name,
        folders=[config.folder],
        study=config,
        run=None,
        cells=curves_of(results),
        reading=reading,
        decisions=find_decisions(config, results),
        final=final,
        before={},
        jobs=[],
        pathologies=pathologies.finish(),
        warnings=[*unplayable_lines(every, unplayable), *format_server_counts(read_counts([config.folder]))],
        sessions=read_sessions(config.folder),
    )


def _pathologies_of_run(configs: Sequence[RunConfig], labels: set[str]) -> dict[tuple[str, str], Count]:
    """Of every variant before and after RL, as evaluated and greedy; and of its stored training groups."""
    found = Pathologies()
    for config in configs:
        for variant, spec in config.variants.items():
            for seed in config.seeds:
                folder = config.folder / variant / f"seed{seed}"
                stages = dict.fromkeys(part.stage for part in parts_of(config) if part.variant == variant)
                for stage in stages:
                    _look(found, folder / stage / "results.jsonl", labels)
                groups = folder / "episodes.jsonl"
                if spec.rl.steps and groups.is_file() and groups.stat().st_size:
                    for group in read_groups(groups).groups:
                        found.group(variant, groups, group)
    return found.finish()


def _look(found: Pathologies, file: Path, labels: set[str]) -> None:
    """At the episodes whose answers count, one by one."""
    for result in _whole(file):
        place = result.place
        if place.strategy in labels:
            found.episode(place.strategy, place.family, place.size, file, result.episodes[result.chosen])


def _whole(file: Path) -> Iterator[Result]:
    if file.is_file():
        yield from read_results(file, whole=True)
