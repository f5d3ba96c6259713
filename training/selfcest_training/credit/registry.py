"""Finds credit schemes by name: built-in ones, those of installed packages, or `package.module:Class`.

A package registers a scheme through an entry point in the group `selfcest.credit`. The scheme is imported only when a
config names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import Registry, build, check_kind, check_state_apart
from selfcest_training.credit.base import CreditAssigner, Internal, Promise, overrides

_CLASS_ATTRIBUTES = ("name", "formula", "source", "promise", "null_player")
_STATE_METHODS = ("fit", "state_dict", "load_state_dict")
_HOOK_ARGUMENTS = {
    "replays": ("group",),
    "more_replays": ("episode", "turn_counts"),
    "assign": ("group", "replayed"),
    "assign_step": ("groups", "replayed", "internals"),
    "fit": ("groups", "internals"),
    "load_state_dict": ("state",),
}

# Classes are named by reference, not imported, because wrapper schemes import this module.
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
        "decision": "selfcest_training.credit.decision:Decision",
    },
)


def find_scheme(reference: str) -> type[CreditAssigner]:
    """Find the class of a scheme.

    Raises:
        ConfigError: there is no scheme of this name.
        PlugInError: the scheme cannot be imported, or does not follow the interface of `CreditAssigner`.
    """
    cls = SCHEMES.load(reference)
    check_scheme(cls, f"credit scheme '{reference}'")
    return cls


def check_scheme(cls: type[CreditAssigner], who: str) -> None:
    """Raise `PlugInError` unless a class follows the interface of `CreditAssigner`. No instance is made.

    Args:
        cls: the class of the scheme.
        who: description of the plug-in, for the message.
    """
    check_kind(cls, CreditAssigner, who)
    for hook, arguments in _HOOK_ARGUMENTS.items():
        instance = (None,) if inspect.isfunction(inspect.getattr_static(cls, hook)) else ()
        try:
            inspect.signature(getattr(cls, hook)).bind(*instance, *arguments)
        except TypeError as error:
            raise PlugInError(
                f"{who}: {cls.__name__}.{hook} cannot be called as {hook}({', '.join(arguments)}): {error}; give it "
                "these arguments"
            ) from None
    undeclared = [name for name in _CLASS_ATTRIBUTES if not hasattr(cls, name)]
    if undeclared:
        raise PlugInError(f"{who}: {cls.__name__} lacks {', '.join(undeclared)}; declare them as class attributes")
    promise: object = cls.promise
    if not isinstance(promise, Promise):
        expected = ", ".join(f"Promise.{member.name}" for member in Promise)
        raise PlugInError(f"{who}: {cls.__name__}.promise is {promise!r}; expected one of {expected}")
    if not overrides(cls, "assign") and not overrides(cls, "assign_step"):
        raise PlugInError(f"{who}: {cls.__name__} lacks assign(); override it, or assign_step()")
    internals: object = cls.internals
    if not isinstance(internals, frozenset) or not all(isinstance(member, Internal) for member in internals):
        raise PlugInError(
            f"{who}: {cls.__name__}.internals is {internals!r}; expected a frozenset of {' and '.join(Internal)}"
        )
    state_methods = [name for name in _STATE_METHODS if overrides(cls, name)]
    if state_methods and len(state_methods) < len(_STATE_METHODS):
        missing = ", ".join(name for name in _STATE_METHODS if name not in state_methods)
        raise PlugInError(
            f"{who}: {cls.__name__} has {', '.join(state_methods)} and lacks {missing}; override all of them or none"
        )
    check_state_apart(cls, who, bool(state_methods))


def make_assigner(reference: str, options: Mapping[str, Any], *, where: str) -> CreditAssigner:
    """Make a scheme with options. Options are checked against their annotations; errors name `where.option`."""
    return build(find_scheme(reference), options, where=where)


def require_pure(assigner: CreditAssigner, where: str) -> None:
    """Raise `ConfigError` if another scheme cannot call this one group by group."""
    if assigner.internals or overrides(assigner, "fit") or overrides(assigner, "assign_step"):
        raise ConfigError(
            f"{where} is '{assigner.name}', which learns, needs internals of the policy or all groups of a step; "
            "choose a scheme that is a pure function of one group's records"
        )
