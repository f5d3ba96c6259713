"""The worker process that asks math-verify whether two answers are equal. No other module imports this library.

Only the LaTeX grammar of math-verify is used. Its grammar of plain expressions hands texts to sympy's `parse_expr`,
which executes them. The timeouts of math-verify are off, because the caller kills the whole worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selfcest_env.graders.workers import serve


def load() -> Callable[[Any], Any]:
    """Import math-verify and return the comparison.

    The comparison takes `{"truth": text, "answer": text}`. It returns a bool, or `None` if one text cannot be parsed.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(),)

    def read(text: str) -> list[Any]:
        expressions: list[Any] = parse(
            f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
        )
        return expressions

    def equal(request: Any) -> bool | None:
        truth = read(request["truth"])
        answer = read(request["answer"])
        if not truth or not answer:
            return None
        verdict: bool = verify(truth, answer, timeout_seconds=None, raise_on_error=True)
        return verdict

    # The first comparison loads the grammar, which takes seconds. It must not count against a request's time.
    equal({"truth": r"2\sqrt{2}", "answer": r"\sqrt{8}"})
    return equal


if __name__ == "__main__":
    serve(load)
