"""Linux namespaces and overlayfs from plain Python. No daemon, no root."""
