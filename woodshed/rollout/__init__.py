"""One episode from task to graded trajectory, by our agent or by a program of others."""
