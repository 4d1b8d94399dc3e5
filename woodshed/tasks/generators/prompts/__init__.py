"""The instruction of a task at several levels, from templates or in the words of a policy."""
