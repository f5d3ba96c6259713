"""The sources of a report: runs and studies as their folders hold them, which are read and never written."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from selfcest_agents.server_counts import format_server_counts
from selfcest_env.errors import ConfigError
from selfcest_env.structure import to_builtins
from selfcest_eval.play.config import StudyConfig, load_stored_study
from selfcest_eval.play.results import Result, read_unplayable
from selfcest_eval.play.strategies import quote_name
from selfcest_eval.play.unplayable import describe_unplayable, drop_unplayable
from selfcest_eval.report.jobs import JobLog, describe_failed_warm_starts, describe_restarts, read_jobs
from selfcest_eval.report.pathologies import Count, Example, ExampleKey, Occurrence, PathologyCounter
from selfcest_eval.report.settings import AnalysisSettings, check_result_keys, make_settings
from selfcest_eval.report.training_run import (
    AFTER_RL,
    list_server_folders,
    make_run_study,
    pair_variants,
    read_file,
    read_run_results,
    sort_by_eval_set,
)
from selfcest_eval.stats.decision_table import FamilyDecisions, find_decisions, find_forced_triples
from selfcest_eval.stats.table import Curves, make_curves
from selfcest_training.config import EvalSet, RunConfig
from selfcest_training.config_file import load_stored_config
from selfcest_training.credit.offline import read_groups
from selfcest_training.files import report_read_errors
from selfcest_training.servers import read_counts
from selfcest_training.session import read_sessions

# Keys in which runs of one experiment may differ.
_KEYS_OF_A_FOLDER = ("name", "output", "seeds", "workers", "logging")


@dataclass(frozen=True)
class Source:
    """A study, a run, or several runs that differ in nothing but their seeds.

    Attributes:
        name: name of the folder; of several, their names joined.
        folders: their paths.
        study: config of the study that the results are read as.
        cells, settings, decisions: of everything that was evaluated so far; there may be no cells yet.
        final: strategies of the short forms: every variant of a run as trained and greedy, or all strategies of a
            study that are no forced choice.
        pathologies: counts by pathology and strategy, or variant for those of training groups.
        examples: an example for each strategy, family, size and budget.
        training_examples: an episode of each variant and training step.
        warnings: facts that a reader must know first.
        sessions: the commands that wrote the folders.
        run: the config of a training run, with the seeds of all folders; `None`: a study.
        before: of a run, by strategies of `final`, the same variant before RL.
        jobs: of a run, the logs of its jobs.
    """

    name: str
    folders: Sequence[Path]
    study: StudyConfig
    cells: Sequence[Curves]
    settings: AnalysisSettings
    decisions: Sequence[FamilyDecisions]
    final: Sequence[str]
    pathologies: Mapping[tuple[str, str], Count]
    warnings: Sequence[str]
    sessions: Sequence[Mapping[str, Any]]
    run: RunConfig | None = None
    before: Mapping[str, str] = field(default_factory=dict)
    jobs: Sequence[JobLog] = ()
    examples: Mapping[ExampleKey, Example] = field(default_factory=dict)
    training_examples: Mapping[tuple[str, int], Occurrence] = field(default_factory=dict)

    @property
    def short_names(self) -> dict[str, str]:
        """The names of strategies in sentences of a page, which calls a trained variant by its name only."""
        if self.run is None:
            return self.settings.names
        return {name: quote_name(label.replace(AFTER_RL, "")) for name, label in self.settings.labels.items()}


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause Python's search for cycles. Records have none, and each search goes through all that were read so far."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pause_garbage_collection()
def read_sources(folders: Sequence[Path]) -> list[Source]:
    """Read the sources of all folders. Runs that differ in nothing but their seeds are one source.

    Raises:
        ConfigError: a folder holds neither a run nor a study, or is named twice.
        RecordError: a file of it is damaged; the message names file and line.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"a folder is named twice among {', '.join(map(str, folders))}; name each once")
    studies: list[Source] = []
    runs: dict[str, list[RunConfig]] = {}
    for folder in folders:
        config = load_folder_config(folder)
        if isinstance(config, StudyConfig):
            with report_read_errors(folder):
                studies.append(read_study(config))
        else:
            runs.setdefault(_experiment_key(config, runs), []).append(config)
    with report_read_errors(folders[0]):
        return [*map(read_run, runs.values()), *studies]


def load_folder_config(folder: Path) -> RunConfig | StudyConfig:
    """Return the stored config of a folder, wherever it has been moved to.

    Raises:
        ConfigError: the folder holds neither a run nor a study.
    """
    # `.`, `..` and links have other neighbours than the folder that they name.
    if folder.name != folder.resolve().name:
        folder = folder.resolve()
    output = str(folder.parent)
    name = folder.name
    with report_read_errors(folder):
        if (folder / "study.yaml").is_file():
            return replace(load_stored_study(folder / "study.yaml"), output=output, name=name)
        if (folder / "config.yaml").is_file():
            return replace(load_stored_config(folder / "config.yaml"), output=output, name=name)
    raise ConfigError(f"{folder} holds no config.yaml of a run and no study.yaml; give the folder of one of them")


def _experiment_key(config: RunConfig, runs: Mapping[str, Sequence[RunConfig]]) -> str:
    """Return a key that is equal for runs that differ in their seeds only. Runs with a common seed get two keys."""
    values = to_builtins(config)
    key = repr({name: value for name, value in values.items() if name not in _KEYS_OF_A_FOLDER})
    is_taken = any(set(config.seeds) & set(run.seeds) for run in runs.get(key, ()))
    return f"{key} {config.folder}" if is_taken else key


def read_run(configs: Sequence[RunConfig], *, for_page: bool = True) -> Source:
    """Read a run, or several runs that differ in nothing but their seeds.

    Args:
        configs: of the runs.
        for_page: whether to look for pathologies in every episode, and to accept that nothing has been evaluated yet.

    Raises:
        ConfigError: nothing has been evaluated.
        RecordError: a file is damaged.
    """
    config = replace(configs[0], seeds=tuple(chain.from_iterable(run.seeds for run in configs)))
    # A study must have eval sets. Of a run without any, the study only names strategies and costs.
    eval_sets = config.evaluation.eval_sets or tuple(EvalSet(name, "any") for name in config.tasks)
    study = make_run_study(replace(config, evaluation=replace(config.evaluation, eval_sets=eval_sets)))
    jobs = list(chain.from_iterable(map(read_jobs, configs)))
    variants_in_order = list(config.variants)
    jobs.sort(key=lambda job: variants_in_order.index(job.variant))
    counter = PathologyCounter()
    results, notes = _read_results(configs, counter if for_page else None, is_training=for_page and bool(jobs))
    variants = pair_variants(config, {result.place.strategy for result in results})
    before = {after: earlier for after, earlier in variants.items() if earlier is not None}
    delegating = []
    for variant, label in zip(config.variants, variants, strict=True):
        if config.limits_of(variant).delegation:
            delegating.append(label)
    counts = read_counts(chain.from_iterable(map(list_server_folders, configs)))
    return Source(
        name=" + ".join(run.name for run in configs),
        folders=[run.folder for run in configs],
        study=study,
        run=config,
        cells=make_curves(sort_by_eval_set(study, results)) if results else [],
        settings=make_settings(study, subjects=delegating[::-1] or tuple(variants)),
        decisions=find_decisions(study, results) if results else [],
        final=list(variants),
        before=before,
        jobs=jobs,
        pathologies=_pathologies_of_run(configs, counter, {*variants, *before.values()}) if for_page else {},
        warnings=[
            *describe_failed_warm_starts(jobs, config.compute_tokens),
            *notes,
            *describe_restarts(jobs),
            *format_server_counts(counts),
        ],
        sessions=list(chain.from_iterable(read_sessions(run.folder) for run in configs)),
        examples=counter.examples,
        training_examples=counter.training_examples,
    )


def _read_results(
    configs: Sequence[RunConfig], counter: PathologyCounter | None, is_training: bool
) -> tuple[list[Result], list[str]]:
    """Return the results of all runs, of the strategies that all of them have, and notes on missing ones.

    Args:
        configs: of the runs.
        counter: counts the pathologies of every result as it is read; `None`: they are not counted.
        is_training: whether a run may have no results yet.
    """
    if not configs[0].evaluation.eval_sets:
        return [], ["evaluation.eval_sets is empty, so nothing was evaluated"]
    results: list[Result] = []
    notes: list[str] = []
    strategies_of_runs = []
    for config in configs:
        try:
            results_of_run, notes_of_run = read_run_results(config, None if counter is None else counter.add_result)
        except ConfigError as error:
            if not is_training:
                raise
            notes.append(str(error))
            continue
        notes += notes_of_run
        if results_of_run:
            results += results_of_run
            strategies_of_runs.append({result.place.strategy for result in results_of_run})
    shared = set.intersection(*strategies_of_runs) if results else set()
    return [result for result in results if result.place.strategy in shared], notes


def read_study(config: StudyConfig, *, crossed: bool | None = None, for_page: bool = True) -> Source:
    """Read a study.

    Args:
        config: of the study.
        crossed: see `make_settings`.
        for_page: whether to look for pathologies in every episode.

    Raises:
        ConfigError: the study is not finished.
        RecordError: a file is damaged, or the config lacks an eval set, a strategy, a budget or a seed of its results.
    """
    file = config.folder / "results.jsonl"
    if not file.is_file():
        raise ConfigError(f"{config.folder} holds no results.jsonl: the study is not finished; finish it with --resume")
    counter = PathologyCounter()
    stored = read_file(file, bool(find_forced_triples(config)), counter.add_result if for_page else None)
    unplayable = read_unplayable(file)
    check_result_keys(config, stored, file)
    results = drop_unplayable(stored, unplayable)
    settings = make_settings(config, crossed=crossed)
    final = [name for name in config.strategies if name not in settings.aside]
    return Source(
        name=config.name,
        folders=[config.folder],
        study=config,
        cells=make_curves(results),
        settings=settings,
        decisions=find_decisions(config, results),
        final=final,
        pathologies={key: count for key, count in counter.finish().items() if key[1] in final},
        warnings=[*describe_unplayable(stored, unplayable), *format_server_counts(read_counts([config.folder]))],
        sessions=read_sessions(config.folder),
        examples=counter.examples,
    )


def _pathologies_of_run(
    configs: Sequence[RunConfig], counter: PathologyCounter, labels: set[str]
) -> dict[tuple[str, str], Count]:
    """Count the pathologies of the stored training groups too, and return those of strategies with these labels."""
    variants = set[str]()
    for config in configs:
        for variant, seed in product(config.variants, config.seeds):
            file = config.folder / variant / f"seed{seed}" / "episodes.jsonl"
            if config.variants[variant].rl.steps and file.is_file() and file.stat().st_size:
                variants.add(variant)
                for group in read_groups(file).groups:
                    counter.add_group(variant, file, group)
    return {key: count for key, count in counter.finish().items() if key[1] in labels | variants}
