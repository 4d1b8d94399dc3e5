"""One episode from task to graded trajectory, by the built-in agent or an external program."""
