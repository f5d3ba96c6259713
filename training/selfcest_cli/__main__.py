"""`python -m selfcest_cli` is `selfcest`."""

from selfcest_cli.main import main

main()
