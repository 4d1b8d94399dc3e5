"""Changes that make a task of a package: single functions, groups of them, and their splits."""
