"""Pages for a browser: each is one file that needs no network, no server and no build."""
