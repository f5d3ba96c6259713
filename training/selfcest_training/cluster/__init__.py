"""Out of one machine: a learner whose weights, gradients and moments are spread over ranks."""
