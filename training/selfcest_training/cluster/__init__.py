"""Training on several machines: rollout workers on Ray. Ray is imported when a cluster is asked for, never before."""
