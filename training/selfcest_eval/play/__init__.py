"""Playing strategies on the same instances at matched budget, and storing what was played."""
