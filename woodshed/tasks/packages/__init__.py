"""Packages pinned by sha256: index, archives, dependencies, workspace, and what their tests cover."""
