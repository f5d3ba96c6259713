"""Who learns: records to credit, credit to batches, batches to one optimiser step."""
