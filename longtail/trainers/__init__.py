"""Learning: optimizer steps on packed micro-batches, checkpoints, supervised warm starts."""
