"""Woodshed trains coding agents in the very harness they ship in.

Importing this package imports nothing heavy: no torch, no HTTP server.
"""

__version__ = "0.1.0"
