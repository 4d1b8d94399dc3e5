"""Instructions of tasks at several levels of detail, from templates or reworded by a policy."""
