"""The registry of graders. A grader judges a final answer and never executes text that a model wrote.

The module of a grader is imported when a config names the grader.
"""

from selfcest_env.graders.exact import ExactInteger, ExactMatch
from selfcest_env.graders.grade import NO_ANSWER, AnswerPart, Grade, Grader
from selfcest_env.plugin import Registry

GRADERS = Registry(
    Grader,
    "grader",
    "selfcest.grader",
    {
        "exact_match": "selfcest_env.graders.exact:ExactMatch",
        "exact_integer": "selfcest_env.graders.exact:ExactInteger",
        "cells": "selfcest_env.graders.cells:CellMatch",
        "number": "selfcest_env.graders.number:NumberMatch",
        "math": "selfcest_env.graders.math:MathMatch",
        "countdown": "selfcest_env.graders.countdown:CountdownMatch",
        "question_answer": "selfcest_env.graders.qa:QuestionAnswer",
        "wide": "selfcest_env.graders.wide:Wide",
        "by_source": "selfcest_env.graders.by_source:BySource",
        "paper_arithmetic": "selfcest_env.graders.paper:PaperArithmetic",
        "paper_multihop": "selfcest_env.graders.paper:PaperMultihop",
    },
)

__all__ = ["GRADERS", "NO_ANSWER", "ExactInteger", "ExactMatch", "Grade", "Grader", "AnswerPart"]
