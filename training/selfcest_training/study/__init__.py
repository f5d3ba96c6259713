"""Studies: arms at matched budget on the same instances, their accuracy-cost frontiers, and what follows."""
