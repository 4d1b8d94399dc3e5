"""Sources of tasks: read a source distribution, a folder or a git repository, or call a source of the user's own."""
