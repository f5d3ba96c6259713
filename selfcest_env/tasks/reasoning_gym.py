"""Problems from reasoning-gym (the extra `reasoning-gym`), judged by the graders of this project.

The scorers of reasoning-gym pass the model's text to `eval` or sympy, and give credit for wrong answers, so they are
never called. Only generators are listed whose right answer is a single text that can be compared exactly.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError, TaskError, install_hint
from selfcest_env.structure import Checked, OneOf
from selfcest_env.tasks.source import make_task
from selfcest_env.types import Task

GENERATORS = (
    "base_conversion",
    "basic_arithmetic",
    "bitwise_arithmetic",
    "chain_sum",
    "count_primes",
    "letter_counting",
    "needle_haystack",
    "number_filtering",
    "number_sorting",
    "path_star",
    "products",
    "spell_backward",
    "word_sequence_reversal",
    "word_sorting",
)


@dataclass(frozen=True)
class ReasoningGym(Checked):
    """Source of the problems of one generator. The grader is `exact_match`.

    Attributes:
        generator: one of `GENERATORS`. Clones can share the work of all but `spell_backward`, which is a control.
        options: options of the generator, such as `min_terms` of `chain_sum`, except `seed` and `size`.
    """

    name: ClassVar[str] = "reasoning_gym"
    generator: Annotated[str, OneOf(*GENERATORS)]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if {"seed", "size"} & set(self.options):
            raise ConfigError("options names seed or size, which every draw sets itself; leave them out")

    def draw(self, rng: np.random.Generator) -> Task:
        try:
            library = importlib.import_module("reasoning_gym")
        except ImportError as error:
            raise ConfigError(
                f"task source {self.name} needs reasoning-gym ({error}); run: {install_hint('reasoning-gym')}"
            ) from error
        try:
            seed = int(rng.integers(2**31))
            item = library.create_dataset(self.generator, seed=seed, size=1, **self.options)[0]
        except Exception as error:
            raise TaskError(
                f"{self.name}: the generator {self.generator!r} with options {dict(self.options)} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        question = item["question"]
        answer = item["answer"]
        if not isinstance(answer, str) or not answer.strip():
            raise TaskError(f"{self.name}: {self.generator!r} gave the answer {answer!r}; expected a text")
        return make_task(self.name, question, answer, {"generator": self.generator})
