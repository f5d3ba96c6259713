"""Who plays the delegation game: token-level engines, the embedded tiny model, and the rollout that feeds the game.

Importing this package imports nothing heavy; each engine brings its own libraries when its module is imported.
"""

from selfcest_env import __version__

__all__ = ["__version__"]
