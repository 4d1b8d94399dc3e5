"""``woodshed tasks build``: pin and lock the sources, and build their tasks."""
