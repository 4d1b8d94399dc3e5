"""Packages pinned by sha256: index, archives, dependencies, workspaces, suites, and files for other Harbor tools."""
