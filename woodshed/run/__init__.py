"""A run from start to report: plan of its stages, supervision and restart, live screen; and commands like it."""
