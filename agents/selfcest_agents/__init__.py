"""Who plays the delegation game: token-level engines, the embedded tiny model, and the rollout that feeds the game.

Importing this package imports nothing heavy; each engine brings its own libraries when its module is imported.
"""

import os

from selfcest_env import __version__

# Libraries that models are loaded and run with report their use unless told otherwise, and read this when imported.
for _name, _value in (
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)

__all__ = ["__version__"]
