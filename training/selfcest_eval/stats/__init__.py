"""Frontiers, intervals and decisions, computed from stored results."""
