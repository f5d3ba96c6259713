"""Players of the delegation game: engines, the embedded tiny model, policies and the rollout.

The import of this package is fast. Each engine imports its own libraries when its module is imported.
"""

import os

from selfcest_env import __version__

# These libraries report usage statistics by default. They read the variables when they are imported.
for _name, _value in (
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)

__all__ = ["__version__"]
