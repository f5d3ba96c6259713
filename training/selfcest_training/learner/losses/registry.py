"""Policy losses by name: built in, installed by another package, or `package.module:Class`.

A package installs a loss by an entry point in the group `selfcest.loss`; nothing of it is imported before a config
names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfcest_env.plugin import build, load, with_entry_points
from selfcest_training.learner.losses.base import Loss

ENTRY_POINTS = "selfcest.loss"

BUILTINS: dict[str, str] = {
    "clipped": "selfcest_training.learner.losses.clipped:Clipped",
    "cispo": "selfcest_training.learner.losses.cispo:Cispo",
}


def find_loss(reference: str) -> type[Loss]:
    """The class of a loss.

    Raises:
        ConfigError: no such name. `PlugInError`: it does not import, or its objects cannot be called.
    """
    return load(reference, with_entry_points(BUILTINS, ENTRY_POINTS), Loss, what="loss")


def make_loss(reference: str, options: Mapping[str, Any], *, where: str) -> Loss:
    """A loss with its options, each checked against its annotation; errors name `where.option`."""
    return build(find_loss(reference), options, where=where)
