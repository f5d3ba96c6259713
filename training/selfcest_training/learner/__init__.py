"""From credited episodes to one optimiser step: samples, rows, log-probs, losses."""
