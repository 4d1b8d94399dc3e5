"""``woodshed tasks build``: pin the sources, build their tasks, lock what they are made from."""
