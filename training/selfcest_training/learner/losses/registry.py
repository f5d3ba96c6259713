"""Terms of the loss by name: built in, installed by another package, or `package.module:Class`.

A package installs a term by an entry point in the group `selfcest.loss`. It is imported when a config names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selfcest_env.errors import PlugInError
from selfcest_env.plugin import Registry, build
from selfcest_training.learner.losses.base import LossTerm, Need, needs_of
from selfcest_training.learner.options import LossConfig

LOSSES = Registry(
    LossTerm,
    "loss",
    "selfcest.loss",
    {
        "clipped": "selfcest_training.learner.losses.clipped:Clipped",
        "cispo": "selfcest_training.learner.losses.cispo:Cispo",
        "kl": "selfcest_training.learner.losses.kl:Kl",
        "entropy": "selfcest_training.learner.losses.entropy:Entropy",
    },
)


def make_loss(reference: str, options: Mapping[str, Any], *, where: str) -> LossTerm:
    """Build a term, each option checked against its annotation; errors name `where.option`."""
    term = build(LOSSES.load(reference), options, where=where)
    try:
        needs_of(term)
    except ValueError as error:
        raise PlugInError(f"loss '{reference}': needs has {error}; expected {' or '.join(Need)}") from error
    return term


@dataclass(frozen=True)
class LossSum:
    """A loss with its terms built: the policy's term, and added terms by name with their weights."""

    policy: LossTerm
    added: Mapping[str, tuple[float, LossTerm]]

    @property
    def needs(self) -> frozenset[Need]:
        return needs_of(self.policy).union(*(needs_of(term) for _, term in self.added.values()))


def make_loss_sum(config: LossConfig, where: str = "loss") -> LossSum:
    """Build the terms of a loss. Raises `ConfigError` or `PlugInError` that names the config key."""
    added = {
        name: (term.weight, make_loss(term.name or name, term.options, where=f"{where}.terms.{name}.options"))
        for name, term in config.terms.items()
    }
    return LossSum(make_loss(config.name, config.options, where=f"{where}.options"), added)
