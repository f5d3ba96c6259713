"""Grade each task by the grader of its source, for mixtures of sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from selfcest_env.errors import ConfigError
from selfcest_env.graders import GRADERS, Grade, Grader
from selfcest_env.types import Task

# The grader of each built-in source whose answers need more than an exact match.
DEFAULT_GRADERS: Mapping[str, str] = {
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
    "memory_steps": "question_answer",
    "musique": "question_answer",
    "questions": "question_answer",
    "room_stories": "question_answer",
    "two_wiki": "question_answer",
    "two_wiki_tables": "wide",
    "wide_tables": "wide",
}

# Options for training: a policy would learn to exploit the leniency of the official rules. Published scores need those.
STRICT_OPTIONS: Mapping[str, Mapping[str, bool]] = {
    "number": {"strict": True},
    "question_answer": {"strict": True, "extract_answer": True},
    "wide": {"strict": True},
}


@dataclass(frozen=True)
class BySource:
    """Grades a task by the grader of its source.

    Attributes:
        graders: graders by source, each a mapping with `name` and the grader's options. Other built-in sources use
            `DEFAULT_GRADERS`.
        other: name of the grader for a source that is in neither.
        strict: whether default graders use `STRICT_OPTIONS`. Graders in `graders` have only the options given there.
    """

    graders: Mapping[str, Any] = field(default_factory=dict)
    other: str = "exact_match"
    strict: bool = False

    def __post_init__(self) -> None:
        for source in self.graders:
            self._grader_of(source)
        self._grader_of("")

    def grade(self, task: Task, answer: str | None) -> Grade:
        return self._grader_of(task.source).grade(task, answer)

    @cached_property
    def _grader_cache(self) -> dict[str, Grader]:
        return {}

    def _grader_of(self, source: str) -> Grader:
        """Return the grader of a source; the empty source stands for `other`."""
        if source not in self._grader_cache:
            default_name = DEFAULT_GRADERS.get(source, self.other)
            default_options = STRICT_OPTIONS.get(default_name, {}) if self.strict else {}
            spec = self.graders.get(source, {"name": default_name, **default_options})
            if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
                raise ConfigError(f"by_source.graders.{source} is {spec!r}; expected a mapping with 'name' and options")
            options = {key: value for key, value in spec.items() if key != "name"}
            where = f"by_source.graders.{source or 'other'}"
            self._grader_cache[source] = GRADERS.make(spec["name"], options, where=where)
        return self._grader_cache[source]
