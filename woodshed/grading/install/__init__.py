"""Grading of installs: replays a recipe offline, then matches targets and runs tests in boxes with its results."""
