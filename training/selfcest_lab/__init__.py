"""The laboratory: any credit scheme against the exact policy gradient of small delegation games."""

from selfcest_lab.games import GAMES, Game, Payoff
from selfcest_lab.measure import LabConfig, LabReport, Measurement, measure, run_lab

__all__ = ["GAMES", "Game", "LabConfig", "LabReport", "Measurement", "Payoff", "measure", "run_lab"]
