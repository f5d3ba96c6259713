"""Checks that the settings of several learners share."""

from __future__ import annotations

from typing import Any

from selfcest_env.errors import ConfigError


def check_positive(settings: Any, *names: str) -> None:
    for name in names:
        _check(settings, name, getattr(settings, name) > 0, "more than 0")


def check_share(settings: Any, *names: str) -> None:
    for name in names:
        _check(settings, name, 0 <= getattr(settings, name) <= 1, "0 to 1")


def check_not_negative(settings: Any, *names: str) -> None:
    for name in names:
        _check(settings, name, getattr(settings, name) >= 0, "0 or more")


def check_groups(settings: Any, least: int) -> None:
    """Groups of at least so many episodes, and a whole number of them."""
    _check(settings, "group_size", settings.group_size >= least, f"{least} or more episodes of the same problem")
    whole = settings.episodes > 0 and settings.episodes % settings.group_size == 0
    _check(settings, "episodes", whole, f"a multiple of group_size = {settings.group_size}")


def check_hidden(settings: Any) -> None:
    _check(settings, "hidden", bool(settings.hidden) and min(settings.hidden) > 0, "at least one width, each above 0")


def _check(settings: Any, name: str, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {getattr(settings, name)}; expected {expected}")
