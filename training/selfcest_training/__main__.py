"""`python -m selfcest_training` is `selfcest`."""

from selfcest_training.cli import main

main()
