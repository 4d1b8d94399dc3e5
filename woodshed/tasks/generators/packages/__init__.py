"""Tasks from real packages: injected bugs, deleted features, replayed commits; judged by the packages' own tests."""
