"""The trainer: it turns episode records into credit, credit into batches, and batches into optimizer steps."""

from selfcest_agents import __version__

__all__ = ["__version__"]
