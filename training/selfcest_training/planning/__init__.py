"""What a run will need, before anything starts: memory by device, tokens, time, and where more workers stop helping."""
