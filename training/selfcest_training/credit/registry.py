"""Credit schemes by name: built in, installed by another package, or `package.module:Class`.

A package installs a scheme by an entry point in the group `selfcest.credit`; nothing of it is imported before a config
names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfcest_env.plugin import build, load, with_entry_points
from selfcest_training.credit.base import CreditAssigner

ENTRY_POINTS = "selfcest.credit"

# By reference, so that `per_role`, itself one of them, may look the others up.
BUILTINS: dict[str, str] = {
    "grpo": "selfcest_training.credit.grpo:Grpo",
    "gated": "selfcest_training.credit.gated:Gated",
    "gated_paper": "selfcest_training.credit.gated_paper:GatedPaper",
    "rloo": "selfcest_training.credit.rloo:Rloo",
    "difference": "selfcest_training.credit.difference:Difference",
    "coma": "selfcest_training.credit.coma:Coma",
    "shapley": "selfcest_training.credit.shapley:Shapley",
    "per_role": "selfcest_training.credit.per_role:PerRole",
}


def schemes() -> dict[str, str]:
    """References of all schemes by name. Raises `PlugInError` if two packages claim one name."""
    return with_entry_points(BUILTINS, ENTRY_POINTS)


def find_scheme(reference: str) -> type[CreditAssigner]:
    """The class of a scheme.

    Raises:
        ConfigError: no such name. `PlugInError`: it does not import, or is no credit scheme.
    """
    return load(reference, schemes(), CreditAssigner, what="credit scheme")


def make_assigner(reference: str, options: Mapping[str, Any], *, where: str) -> CreditAssigner:
    """A scheme with its options, each checked against its annotation; errors name `where.option`."""
    return build(find_scheme(reference), options, where=where)
