"""`python -m selfcest_training` is `selfcest`."""

from selfcest_training.commands.cli import main

main()
