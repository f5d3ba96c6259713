"""Training on several machines: rollout workers on Ray, and a learner that is sharded over ranks."""
