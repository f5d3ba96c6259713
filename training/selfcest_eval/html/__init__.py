"""Pages to look at: each one file that needs no network, no server and no build."""
