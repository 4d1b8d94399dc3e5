"""Tasks from real packages: injected bugs, deleted features, replayed commits, graded by the packages' own tests."""
