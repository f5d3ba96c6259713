"""What the settings of several learners say only together."""

from __future__ import annotations

from typing import Any

from selfcest_env.errors import ConfigError


def check_groups(settings: Any, least: int) -> None:
    """Groups of at least so many episodes, and a whole number of them. Raises `ConfigError`."""
    episodes, size = settings.episodes, settings.group_size
    if size < least:
        raise ConfigError(f"group_size is {size}; expected {least} or more episodes of the same problem")
    if episodes % size:
        raise ConfigError(f"episodes is {episodes}; expected a multiple of group_size = {size}")
