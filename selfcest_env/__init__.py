"""Learned delegation as a game: a root agent, its clones, and a hard nested budget."""
