"""Ways out of a box, tried from inside: what the isolation on a machine is worth, found by attacking it."""
