"""Credit schemes by name: built in, installed by another package, or `package.module:Class`.

A package installs a scheme by an entry point in the group `selfcest.credit`; nothing of it is imported before a config
names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import Registry, build
from selfcest_training.credit.base import CreditAssigner, Internal, InternalsAssigner, LearningAssigner, StepAssigner

# By reference, so that those that wrap others, themselves among them, may look these up.
SCHEMES = Registry(
    CreditAssigner,
    "credit scheme",
    "selfcest.credit",
    {
        "grpo": "selfcest_training.credit.grpo:Grpo",
        "gated": "selfcest_training.credit.gated:Gated",
        "gated_paper": "selfcest_training.credit.gated_paper:GatedPaper",
        "rloo": "selfcest_training.credit.rloo:Rloo",
        "difference": "selfcest_training.credit.difference:Difference",
        "diff_loo": "selfcest_training.credit.diff_loo:DiffLoo",
        "coma": "selfcest_training.credit.coma:Coma",
        "shapley": "selfcest_training.credit.shapley:Shapley",
        "parts": "selfcest_training.credit.parts:Parts",
        "to_go": "selfcest_training.credit.to_go:ToGo",
        "per_role": "selfcest_training.credit.per_role:PerRole",
    },
)


def find_scheme(reference: str) -> type[CreditAssigner]:
    """The class of a scheme.

    Raises:
        ConfigError: no such name. `PlugInError`: it does not import, or is no credit scheme.
    """
    return SCHEMES.load(reference)


def check_learning(cls: type, who: str, methods: Collection[str] = ("fit", "state_dict", "load_state_dict")) -> None:
    """Raise `PlugInError` for a class with some of these methods: what it remembers would be lost without a word."""
    has = [name for name in methods if callable(getattr(cls, name, None))]
    if has and len(has) < len(methods):
        missing = ", ".join(name for name in methods if name not in has)
        raise PlugInError(
            f"{who}: {cls.__name__} has {', '.join(has)} and lacks {missing}; declare all of them or none"
        )


def make_assigner(reference: str, options: Mapping[str, Any], *, where: str) -> CreditAssigner:
    """A scheme with its options, each checked against its annotation; errors name `where.option`."""
    cls = find_scheme(reference)
    learns = ("assign_internals", "fit_internals") if hasattr(cls, "assign_internals") else ("fit",)
    check_learning(cls, f"credit scheme '{reference}'", (*learns, "state_dict", "load_state_dict"))
    wanted: object = getattr(cls, "internals", None)
    known = isinstance(wanted, frozenset) and wanted and all(isinstance(one, Internal) for one in wanted)
    if hasattr(cls, "assign_internals") and not known:
        raise PlugInError(
            f"credit scheme '{reference}': {cls.__name__}.internals is {wanted!r}; expected a frozenset of "
            + " and ".join(str(one) for one in Internal)
        )
    return build(cls, options, where=where)


def require_pure(assigner: CreditAssigner, where: str) -> None:
    """Raise `ConfigError` for a scheme that another one cannot call group by group."""
    if isinstance(assigner, LearningAssigner | StepAssigner | InternalsAssigner):
        raise ConfigError(
            f"{where} is '{assigner.name}', which learns, looks into the policy or sees all groups of a step; choose a "
            "scheme that is a pure function of one group's records"
        )
