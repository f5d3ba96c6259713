"""Learned delegation as a game: a root agent, its clones, and a hard nested budget."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("selfcest")
except PackageNotFoundError:  # on the path, as in a checkout, and not installed
    __version__ = "0+unknown"
