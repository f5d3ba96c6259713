"""The evaluation: strategies at matched budget, frontiers, intervals."""
