"""Find questions that training and test data share, for `selfcest contamination` and the warnings of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.plugin import PlugIn, only_trusted
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.contamination import contamination_table
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.source import identity_of
from selfcest_env.tasks.splits import TRAIN, HashedSplit, part_of
from selfcest_eval.play.config import StudyConfig, parse_study
from selfcest_eval.play.instances import source_spec
from selfcest_eval.play.policies import ModelPolicy
from selfcest_eval.play.study import Study
from selfcest_training.config import RunConfig
from selfcest_training.config_file import parse_config, read_config
from selfcest_training.families import TEST_FRACTION
from selfcest_training.printing import print_text


def report_contamination(paths: Sequence[Path], console: Console, trusted: Sequence[str] = ()) -> str:
    """Print a table of the questions that each two data files of these configs share, and return it.

    Sources that draw their tasks are left out. They read no file, and training never draws their held-out instances.

    Args:
        paths: configs of runs or studies, or folders that hold one.
        console: where the table is printed.
        trusted: modules and packages whose plug-ins the configs may name. Others are not imported.

    Raises:
        ConfigError: the configs name fewer than two sources that read files.
        DataError: a data file is missing or broken.
        PlugInError: a source is neither built in nor trusted.
    """
    with only_trusted(trusted):
        sources: dict[str, FiniteSource] = {}
        for path in paths:
            sources.update(_load_finite_sources(path))
        if len(sources) < 2:
            names = next(iter(sources), "none")
            raise ConfigError(
                f"{', '.join(map(str, paths))}: found {len(sources)} sources that read files ({names}), and a "
                "comparison needs two; name the configs of training and of the study"
            )
        table = contamination_table(sources)  # reads the data files
    print_text(console, table)
    return table


def find_contamination(study: Study) -> list[str]:
    """Return a warning for each eval set with questions that a policy of the study was trained on.

    Only sources that read files are compared: training never draws the held-out instances of the others. A training
    file that cannot be read gives a warning too.
    """
    trained_on: dict[str, tuple[str, PlugIn]] = {}
    for policy in study.policies:
        if isinstance(policy, ModelPolicy):
            for family, spec in policy.trained_on().items():
                # Several policies may be trained on the same source, under different names.
                trained_on[str(spec)] = (family, spec)
    warnings: list[str] = []
    for family, spec in trained_on.values():
        warnings.extend(_compare_with_eval_sets(family, spec, study))
    return warnings


def _compare_with_eval_sets(family: str, spec: PlugIn, study: Study) -> Iterator[str]:
    for name, source, splits in _iter_finite(family, source_of_config(spec.name, spec.options, f"tasks.{family}")):
        try:
            training_identities = _identities_of_training_part(source, splits)
        except TaskError as error:
            yield f"Whether training on {name} has seen these instances cannot be told: {error}."
            continue
        for eval_set, tasks in study.tasks.items():
            shared = sum(identity_of(study.sources[eval_set], task) in training_identities for task in tasks)
            if shared:
                yield f"{shared} of {len(tasks)} instances of {' '.join(eval_set)} are questions of training on {name}."


def _identities_of_training_part(source: FiniteSource, splits: Sequence[HashedSplit]) -> set[str]:
    """Return the identities of the tasks that a run may draw from a source inside these splits."""
    identities: set[str] = set()
    for task in source.tasks():
        identity = source.identity(task)
        is_in_splits = all(part_of(task, split.test_fraction, identity) == split.part for split in splits)
        if is_in_splits and part_of(task, TEST_FRACTION, identity) == TRAIN:
            identities.add(identity)
    return identities


def _load_finite_sources(path: Path) -> dict[str, FiniteSource]:
    """Return the distinct sources of a config that read files, by the config's path and the family."""
    data = read_config(path)
    config = parse_study(data) if "budgets" in data else parse_config(data)
    sources: dict[str, FiniteSource] = {}
    for family, spec in _task_specs(config).items():
        task_source = source_of_config(spec.name, spec.options, f"{path}: tasks.{family}")
        for name, source, _ in _iter_finite(f"{path}: {family}", task_source):
            if source not in sources.values():
                sources[name] = source
    return sources


def _task_specs(config: StudyConfig | RunConfig) -> Mapping[str, PlugIn]:
    """Return the task sources of a run by family, and those of a study by eval set."""
    if isinstance(config, RunConfig):
        return config.tasks
    return {f"{eval_set.family} {eval_set.size}": source_spec(config, eval_set) for eval_set in config.eval_sets}


def _iter_finite(
    name: str, source: TaskSource, splits: tuple[HashedSplit, ...] = ()
) -> Iterator[tuple[str, FiniteSource, tuple[HashedSplit, ...]]]:
    """Yield all sources that read files in a source, each with a name and the splits around it."""
    if isinstance(source, FiniteSource):
        yield name, source, splits
    elif isinstance(source, Mixture):
        for number, part in enumerate(source.sources, 1):
            yield from _iter_finite(f"{name} {number}", part, splits)
    else:
        if isinstance(source, HashedSplit):
            splits = (*splits, source)
        # Sources of tasks that are made of another source's, such as `memory_steps`, name it so.
        inner: Any = getattr(source, "source", None)
        if hasattr(inner, "draw"):
            yield from _iter_finite(name, inner, splits)
