"""The worker that asks math-verify whether two answers are equal. Nothing else of the project imports this library.

Only its LaTeX grammar is used: its reading of plain expressions hands texts to sympy's `parse_expr`, which executes
them. Its own timeouts are off, since the worker as a whole is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selfcest_env.graders.workers import serve


def load() -> Callable[[Any], Any]:
    """Imports math-verify. The function takes {"truth", "answer"}, and gives a bool, or None if one is not read."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(),)

    def read(text: str) -> list[Any]:
        found: list[Any] = parse(
            f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
        )
        return found

    def equal(request: Any) -> bool | None:
        truth, answer = read(request["truth"]), read(request["answer"])
        return verify(truth, answer, timeout_seconds=None, raise_on_error=True) if truth and answer else None

    equal({"truth": r"2\sqrt{2}", "answer": r"\sqrt{8}"})  # what the library does at its first use is part of the start
    return equal


if __name__ == "__main__":
    serve(load)
