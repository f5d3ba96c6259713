"""reasoning-gym draws problems and nothing else: its scorers are never called."""

import sys
import types
from typing import Any

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.tasks.reasoning_gym import GENERATORS, ReasoningGym


class Library(types.ModuleType):
    """Has the one function that is used."""

    answer: object = "12"

    def create_dataset(self, name: str, seed: int, size: int, **options: Any) -> list[dict[str, Any]]:
        if "min_trems" in options:
            raise TypeError("unexpected keyword argument 'min_trems'")
        return [{"question": f"{name} {seed} {options}", "answer": self.answer, "metadata": {}}]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library("reasoning_gym")
    monkeypatch.setitem(sys.modules, "reasoning_gym", library)
    return library


def test_the_seed_comes_from_the_draw(library: Library) -> None:
    source = ReasoningGym("chain_sum", {"min_terms": 3})
    first, again = (source.draw(np.random.default_rng(1)) for _ in range(2))
    assert first == again
    assert first != source.draw(np.random.default_rng(2))
    assert (first.answer, first.source, first.metadata["generator"]) == ("12", "reasoning_gym", "chain_sum")
    assert "{'min_terms': 3}" in first.prompt


def test_errors_name_the_generator(library: Library) -> None:
    with pytest.raises(TaskError, match=r"'chain_sum' with options {'min_trems': 3} raised TypeError: unexpected"):
        ReasoningGym("chain_sum", {"min_trems": 3}).draw(np.random.default_rng(1))
    library.answer = None
    with pytest.raises(TaskError, match="'chain_sum' gave the answer None; expected a text"):
        ReasoningGym("chain_sum").draw(np.random.default_rng(1))


def test_only_listed_generators_and_only_their_own_options() -> None:
    with pytest.raises(ConfigError, match=r"generator is 'puzzle24'; expected one of base_conversion"):
        ReasoningGym("puzzle24")
    with pytest.raises(ConfigError, match="names seed or size"):
        ReasoningGym("chain_sum", {"seed": 3})


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"needs reasoning-gym .*; run: pip install -e '\.\[reasoning-gym\]'"):
        ReasoningGym("chain_sum").draw(np.random.default_rng(1))


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_listed_generators_of_the_library(generator: str) -> None:
    pytest.importorskip("reasoning_gym")
    source = ReasoningGym(generator)
    first, again = (source.draw(np.random.default_rng(1)) for _ in range(2))
    assert first == again
    assert first.answer.strip()
