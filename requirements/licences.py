"""Prints which licences the packages of environments have, and names those that are not permissive.

    .venv/bin/python requirements/licences.py .venv .venv-docs

What a package says of itself: its `License-Expression`, else its classifiers, else the first line of its `License`.
That is information and no legal advice: nobody has compared it with the files inside.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from importlib.metadata import Distribution, distributions
from pathlib import Path

PERMISSIVE = re.compile(
    r"\b(0BSD|Apache|APACHE|BSD|BSL-1\.0|CC0|CNRI-Python|HPND|ISC|MIT|NCSA|PSF|Python-2\.0|Python Software Foundation"
    r"|Public Domain|Unlicense|Zlib)\b"
)
PROJECT = "selfcest"


def licence(package: Distribution) -> str:
    """What it says of itself, `unknown` where it says nothing."""
    said = package.metadata.get_all
    if expression := said("License-Expression"):
        return str(expression[0])
    classifiers = [text for text in said("Classifier") or () if text.startswith("License :: ")]
    names = [text.rpartition(" :: ")[2] for text in classifiers if not text.endswith(":: OSI Approved")]
    text = " AND ".join(names) or "".join(said("License") or ()).strip().partition("\n")[0]
    return text[:60] if text and text != "UNKNOWN" else "unknown"


def permissive(text: str) -> bool:
    """Whether all that AND joins has a permissive side; too strict with an AND inside an OR, never too mild."""
    parts = re.split(r" AND ", text, flags=re.IGNORECASE)
    return all(PERMISSIVE.search(part) for part in parts)


def main(environments: list[str]) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for environment in environments:
        site = [str(path) for path in Path(environment).glob("lib/python*/site-packages")]
        if not site:
            sys.exit(f"{environment} is no environment: it has no lib/python*/site-packages; `make test` makes .venv")
        for package in distributions(path=site):
            if package.name not in {PROJECT, "pip"}:
                found[licence(package)].add(package.name)
    for text, names in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        listed = ", ".join(sorted(names, key=str.lower))
        print(textwrap.fill(f"{text} ({len(names)}): {listed}", 120, subsequent_indent="    ", break_long_words=False))
    odd = [f"{name} ({text})" for text, names in found.items() if not permissive(text) for name in names]
    if odd:
        listed = ", ".join(sorted(odd, key=str.lower))
        print(
            textwrap.fill(f"warning: not permissive: {listed}", 120, subsequent_indent="    ", break_long_words=False)
        )


if __name__ == "__main__":
    main(sys.argv[1:] or [".venv"])
