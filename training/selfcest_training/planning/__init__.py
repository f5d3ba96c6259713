"""Plans a run before it starts: memory by device, tokens, time, and the useful number of workers."""
