"""The game as an environment of verifiers: `vf-eval selfcest-verifiers` plays it, and prime-rl can train on it.

verifiers loads this package by its name and takes the three classes of `__all__`. docs/export.md describes them.
"""

from selfcest_env.errors import ConfigError, install_hint

try:
    import verifiers.v1  # noqa: F401
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('verifiers')}") from error

from selfcest_verifiers.env import DelegationEnv
from selfcest_verifiers.harness import DelegationHarness
from selfcest_verifiers.taskset import DelegationTaskset

__all__ = ["DelegationEnv", "DelegationHarness", "DelegationTaskset"]
