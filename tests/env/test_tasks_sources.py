"""What all sources share: names, ids, seeds, splits and mixtures."""

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, PlugInError, TaskError
from selfcest_env.tasks import ExpertSource, TaskSource, make_source
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.tasks.source import content_hash
from selfcest_env.tasks.splits import HashedSplit, part_of
from selfcest_env.types import Task

SOURCES = {
    "range_sum": {"max_length": 4},
    "arithmetic": {"max_operations": 4},
    "ledger_qa": {"mode": "chain"},
}


def draw(source: TaskSource, count: int, seed: int = 0) -> list[Task]:
    rng = np.random.default_rng(seed)
    return [source.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("phrasing", ["terse", "plain"])
def test_same_seed_same_tasks(name: str, phrasing: str) -> None:
    source = make_source(name, phrasing=phrasing, **SOURCES[name])
    assert isinstance(source, ExpertSource)
    assert draw(source, 20) == draw(source, 20)
    assert draw(source, 20) != draw(source, 20, seed=1)
    for task in draw(source, 20):
        assert task.source == name == task.metadata["family"]
        assert task.task_id == content_hash(task)


def test_a_task_id_is_its_content() -> None:
    task = Task("", "?AB", "3", "ledger_qa", {"A": "1", "B": "2"})
    assert content_hash(task) == content_hash(Task("x", "?AB", "3", "ledger_qa", {"B": "2", "A": "1"}))
    others = [
        Task("", "?BA", "3", "ledger_qa", {"A": "1", "B": "2"}),
        Task("", "?AB", "4", "ledger_qa", {"A": "1", "B": "2"}),
        Task("", "?AB", "3", "other", {"A": "1", "B": "2"}),
        Task("", "?AB", "3", "ledger_qa", {"A": "1", "B": "3"}),
    ]
    assert len({content_hash(other) for other in (task, *others)}) == 5


@pytest.mark.parametrize("count", [1000, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SOURCES)
def test_splits_are_disjoint_and_cover_everything(name: str, count: int) -> None:
    source = make_source(name, **SOURCES[name])
    parts = {part: {t.task_id for t in draw(HashedSplit(source, part, 0.3), count)} for part in ("train", "test")}
    assert not parts["train"] & parts["test"]
    share = np.mean([part_of(task, 0.3) == "test" for task in draw(source, count)])
    assert 0.25 < share < 0.35
    # Undivided draws of another seed fall in one of the two parts, and the part does not depend on who draws.
    for task in draw(source, 300, seed=9):
        assert (task.task_id in parts["test"]) <= (part_of(task, 0.3) == "test")


def test_sets_of_disjoint_sizes_are_disjoint() -> None:
    for name, near, far in (
        ("range_sum", {"min_length": 2, "max_length": 4}, {"min_length": 5, "max_length": 8}),
        ("arithmetic", {"min_operations": 1, "max_operations": 2}, {"min_operations": 3, "max_operations": 4}),
        ("ledger_qa", {"min_documents": 4, "max_documents": 5}, {"min_documents": 6, "max_documents": 7}),
    ):
        ids = [{t.task_id for t in draw(make_source(name, **knobs), 1000)} for knobs in (near, far)]
        assert not ids[0] & ids[1], name


def test_an_empty_part_says_so() -> None:
    with pytest.raises(TaskError, match=r"no test instance in .* test_fraction = 0\.0"):
        HashedSplit(RangeSum(), "test", 0.0).draw(np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"HashedSplit\.part is 'tset'\. Did you mean 'test'\?"):
        HashedSplit(RangeSum(), "tset")


def test_a_mixture_draws_by_weight() -> None:
    sources = [{"name": "range_sum", "max_length": 3}, {"name": "ledger_qa"}, {"name": "arithmetic"}]
    source = make_source("mixture", sources=sources, weights=[3, 1, 0])
    families = [task.source for task in draw(source, 400)]
    assert set(families) == {"range_sum", "ledger_qa"}
    assert 0.68 < families.count("range_sum") / 400 < 0.82
    for weights, said in (
        ((1.0,), "1 items; expected one for each"),
        ((0.0,) * 3, "above 0"),
        ((1.0, -1.0, 1.0), "is -1.0"),
    ):
        with pytest.raises(ConfigError, match=said):
            Mixture((RangeSum(),) * 3, weights)


def test_sources_nest_in_options() -> None:
    source = make_source("hashed_split", source={"name": "range_sum", "max_length": 3}, part="test", test_fraction=0.2)
    assert source == HashedSplit(RangeSum(max_length=3), "test", 0.2)


def test_names_and_options_that_lead_nowhere() -> None:
    with pytest.raises(ConfigError, match="unknown task source 'range-sum'.*Did you mean 'range_sum'"):
        make_source("range-sum")
    with pytest.raises(ConfigError, match="max_lenght is unknown.*Did you mean 'max_length'"):
        make_source("range_sum", max_lenght=3)
    with pytest.raises(ConfigError, match="max_length is '3'; expected a whole number"):
        make_source("range_sum", max_length="3")
    with pytest.raises(ConfigError, match=r"range_sum\.max_length is 100"):
        make_source("range_sum", max_length=100)
    with pytest.raises(PlugInError, match=r"Limits lacks draw\(\)"):
        make_source("selfcest_env.types:Limits")
    assert make_source("selfcest_env.tasks.range_sum:RangeSum") == RangeSum()
