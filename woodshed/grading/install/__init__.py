"""Grading of installs: a recipe replayed offline, its targets matched and the tests run in a box of what it left."""
