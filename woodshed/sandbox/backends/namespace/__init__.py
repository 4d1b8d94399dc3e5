"""Boxes by Linux namespaces and overlayfs from plain Python, without a daemon and without root."""
