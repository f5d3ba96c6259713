"""Who learns: records to credit, credit to batches, batches to one optimiser step."""

from selfcest_agents import __version__

__all__ = ["__version__"]
