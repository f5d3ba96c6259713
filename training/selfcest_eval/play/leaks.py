"""`selfcest leaks`, and what a study plays that its policies were trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.plugin import PlugIn, only_trusted
from selfcest_env.tasks import TaskSource, source_of_config
from selfcest_env.tasks.finite import FiniteSource
from selfcest_env.tasks.leaks import leak_report
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.source import identity_of
from selfcest_env.tasks.splits import TRAIN, HashedSplit, part_of
from selfcest_eval.play.config import StudyConfig, parse_study
from selfcest_eval.play.policies import ModelPolicy, PolicySource
from selfcest_eval.play.study import Study
from selfcest_training.config import RunConfig
from selfcest_training.config_file import parse_config, read_config
from selfcest_training.families import TEST_FRACTION


def report_leaks(paths: Sequence[Path], console: Console, trusted: Sequence[str] = ()) -> str:
    """Print, for every two sources of files in these configs, of runs or studies, what they share. Returns the table.

    A source that draws its tasks is left out: it has no file, and its held-out instances are never drawn in training.
    No code is run that only the configs name, save that of modules in `trusted`.

    Raises:
        ConfigError: no two sources to compare.
        DataError: a file that is missing or broken.
        PlugInError: a source that is neither built in nor trusted.
    """
    with only_trusted(trusted):
        sources = dict(chain.from_iterable(map(_sources, paths)))
        if len(sources) < 2:
            found = f"one, {next(iter(sources))}" if sources else "none"
            raise ConfigError(
                f"{', '.join(map(str, paths))}: two sources that read files are needed for a comparison, and there is "
                f"{found}; name the configs of training and of the study"
            )
        text = leak_report(sources)  # which reads the files
    console.print(text, soft_wrap=True, highlight=False, markup=False)
    return text


def leaked(study: Study) -> list[str]:
    """A sentence for every eval set with questions that a run behind one of its policies has trained on.

    Of sources that read files; others draw what training never draws. A training file that is gone is said to be.
    """
    trained = {str(spec): (name, spec) for policy in study.policies for name, spec in _trained_on(policy)}
    return [line for name, spec in trained.values() for line in _leaked_from(name, spec, study)]


def _trained_on(policy: PolicySource) -> Iterable[tuple[str, PlugIn]]:
    return policy.trained_on().items() if isinstance(policy, ModelPolicy) else ()


def _leaked_from(family: str, spec: PlugIn, study: Study) -> Iterator[str]:
    for place, source in _finite(family, source_of_config(spec.name, spec.options, f"tasks.{family}")):
        try:
            known = _training_part(source)
        except TaskError as error:
            yield f"Whether training on {place} has seen these instances cannot be told: {error}."
            continue
        for eval_set, tasks in study.tasks.items():
            shared = sum(identity_of(study.sources[eval_set], task) in known for task in tasks)
            if shared:
                name = " ".join(eval_set)
                yield f"{shared} of {len(tasks)} instances of {name} are questions of training on {place}."


def _training_part(source: FiniteSource) -> set[str]:
    """The identities of what a run may draw from a source, alone or inside another."""
    identities = ((task, source.identity(task)) for task in source.tasks())
    return {found for task, found in identities if part_of(task, TEST_FRACTION, found) == TRAIN}


def _sources(path: Path) -> Iterator[tuple[str, FiniteSource]]:
    """The sources of files behind a config, each once, named by where they stand."""
    data = read_config(path)
    config = parse_study(data) if "budgets" in data else parse_config(data)
    seen: list[FiniteSource] = []
    for name, spec in _families(config).items():
        for place, source in _finite(
            f"{path}: {name}", source_of_config(spec.name, spec.options, f"{path}: tasks.{name}")
        ):
            if source not in seen:
                seen.append(source)
                yield place, source


def _families(config: StudyConfig | RunConfig) -> Mapping[str, PlugIn]:
    """What a study plays, which is its eval sets, and what a run draws from."""
    if isinstance(config, RunConfig):
        return config.tasks
    specs = ((eval_set, config.tasks[eval_set.family]) for eval_set in config.eval_sets)
    return {
        f"{eval_set.family} {eval_set.size}": PlugIn(spec.name, {**spec.options, **eval_set.options})
        for eval_set, spec in specs
    }


def _finite(place: str, source: TaskSource) -> Iterator[tuple[str, FiniteSource]]:
    """The source itself, or those inside a mixture or a split."""
    if isinstance(source, FiniteSource):
        yield place, source
    elif isinstance(source, HashedSplit):
        yield from _finite(place, source.source)
    elif isinstance(source, Mixture):
        for number, part in enumerate(source.sources, 1):
            yield from _finite(f"{place} {number}", part)
