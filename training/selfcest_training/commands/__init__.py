"""The commands of `selfcest`."""
