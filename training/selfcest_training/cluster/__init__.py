"""Out of one machine: rollout workers on Ray, and a learner whose weights and moments are spread over ranks."""
