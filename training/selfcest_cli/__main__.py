"""`python -m selfcest_cli` is `selfcest`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which may be a stranger's folder

from selfcest_cli.main import main

main()
