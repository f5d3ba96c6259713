"""Credit schemes by name: built in, installed by another package, or `package.module:Class`.

A package installs a scheme by an entry point in the group `selfcest.credit`; nothing of it is imported before a config
names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import Registry, build, check_kind, check_state_apart
from selfcest_training.credit.base import CreditAssigner, Internal, Promise, overrides

# By reference, so that those that wrap others, themselves among them, may look these up.
_DECLARED = ("name", "formula", "source", "promise", "null_player")
_MEMORY = ("fit", "state_dict", "load_state_dict")
_ARGUMENTS = {"assign_step": ("groups", "replayed", "internals"), "fit": ("groups", "internals")}
_HOOKS_OF_0_1 = {
    "assign_internals": "assign_step(groups, replayed, internals)",
    "fit_internals": "fit(groups, internals)",
}

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
        ConfigError: no such name.
        PlugInError: it does not import, or it does not keep to the interface of `CreditAssigner`.
    """
    cls = SCHEMES.load(reference)
    check_scheme(cls, f"credit scheme '{reference}'")
    return cls


def check_scheme(cls: type[CreditAssigner], who: str) -> None:
    """Raise `PlugInError` unless a class keeps to the interface of `CreditAssigner`, told without an instance."""
    check_kind(cls, CreditAssigner, who)
    for old, new in _HOOKS_OF_0_1.items():
        if hasattr(cls, old):
            raise PlugInError(f"{who}: {cls.__name__} has {old}, a hook of version 0.1; since 0.2 it is {new}")
    for hook, arguments in _ARGUMENTS.items():
        try:
            inspect.signature(getattr(cls, hook)).bind(None, *arguments)
        except TypeError as error:
            raise PlugInError(
                f"{who}: {cls.__name__}.{hook} cannot be called as {hook}({', '.join(arguments)}): {error}; since "
                "version 0.2 it has these arguments"
            ) from None
    undeclared = [name for name in _DECLARED if not hasattr(cls, name)]
    if undeclared:
        raise PlugInError(f"{who}: {cls.__name__} lacks {', '.join(undeclared)}; declare them as class attributes")
    promise: object = cls.promise
    if not isinstance(promise, Promise):
        expected = ", ".join(f"Promise.{member.name}" for member in Promise)
        raise PlugInError(f"{who}: {cls.__name__}.promise is {promise!r}; expected one of {expected}")
    if not overrides(cls, "assign") and not overrides(cls, "assign_step"):
        raise PlugInError(f"{who}: {cls.__name__} lacks assign(); override it, or assign_step()")
    wanted: object = cls.internals
    if not isinstance(wanted, frozenset) or not all(isinstance(one, Internal) for one in wanted):
        raise PlugInError(
            f"{who}: {cls.__name__}.internals is {wanted!r}; expected a frozenset of "
            + " and ".join(str(one) for one in Internal)
        )
    memory = [name for name in _MEMORY if overrides(cls, name)]
    if memory and len(memory) < len(_MEMORY):
        missing = ", ".join(name for name in _MEMORY if name not in memory)
        raise PlugInError(
            f"{who}: {cls.__name__} has {', '.join(memory)} and lacks {missing}; override all of them or none"
        )
    check_state_apart(cls, who, bool(memory))


def make_assigner(reference: str, options: Mapping[str, Any], *, where: str) -> CreditAssigner:
    """A scheme with its options, each checked against its annotation; errors name `where.option`."""
    return build(find_scheme(reference), options, where=where)


def require_pure(assigner: CreditAssigner, where: str) -> None:
    """Raise `ConfigError` for a scheme that another one cannot call group by group."""
    if assigner.internals or overrides(assigner, "fit") or overrides(assigner, "assign_step"):
        raise ConfigError(
            f"{where} is '{assigner.name}', which learns, looks into the policy or sees all groups of a step; choose a "
            "scheme that is a pure function of one group's records"
        )
