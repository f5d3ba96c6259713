"""The grader that fits the source of a task, for mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from selfcest_env.errors import ConfigError
from selfcest_env.graders import GRADERS, Grade, Grader
from selfcest_env.types import Task

FITTING: Mapping[str, str] = {
    "aime": "number",
    "arithmetic": "exact_integer",
    "countdown": "countdown",
    "countdown_file": "countdown",
    "gsm8k": "number",
    "keyed_cells": "cells",
    "math": "math",
    "babi": "question_answer",
    "babilong": "question_answer",
    "distractors": "question_answer",
    "hotpotqa": "question_answer",
    "musique": "question_answer",
    "questions": "question_answer",
    "two_wiki": "question_answer",
    "two_wiki_tables": "wide",
    "wide_tables": "wide",
    "widesearch": "wide",
}

# Options of the fitting graders that training wants and published scores do not have.
STRICT_OPTIONS: Mapping[str, Mapping[str, bool]] = {
    "number": {"strict": True},
    "question_answer": {"strict": True, "extract_answer": True},
    "wide": {"strict": True},
}


@dataclass(frozen=True)
class BySource:
    """Grades a task by the grader of its source.

    Attributes:
        graders: per source, a mapping with `name` and options; others have the one that fits a built-in source.
        other: the grader's name for a source that is in neither.
        strict: whether fitting graders are strict where they can be, and find word answers in a box (`STRICT_OPTIONS`);
            those in `graders` have the options given there.
    """

    graders: Mapping[str, Any] = field(default_factory=dict)
    other: str = "exact_match"
    strict: bool = False

    def __post_init__(self) -> None:
        for source in self.graders:
            self._of(source)
        self._of("")

    def grade(self, task: Task, answer: str | None) -> Grade:
        return self._of(task.source).grade(task, answer)

    @cached_property
    def _made(self) -> dict[str, Grader]:
        return {}

    def _of(self, source: str) -> Grader:
        if source not in self._made:
            fitting = FITTING.get(source, self.other)
            options = STRICT_OPTIONS.get(fitting, {}) if self.strict else {}
            spec = self.graders.get(source, {"name": fitting, **options})
            if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
                raise ConfigError(f"by_source.graders.{source} is {spec!r}; expected a mapping with 'name' and options")
            options = {key: value for key, value in spec.items() if key != "name"}
            where = f"by_source.graders.{source or 'other'}"
            self._made[source] = GRADERS.make(spec["name"], options, where=where)
        return self._made[source]
