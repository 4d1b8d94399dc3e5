"""A run from start to report: the plan of its stages, supervision and restart, the live screen."""
