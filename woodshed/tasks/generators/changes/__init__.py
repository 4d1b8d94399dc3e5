"""Changes that turn a package into tasks: which functions are changed, in which groups, and in which split."""
