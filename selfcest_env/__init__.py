"""Learned delegation as a game: a root agent, its clones, and a hard nested budget."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("selfcest")
except PackageNotFoundError:  # imported from a checkout, and not installed
    __version__ = "0+unknown"
