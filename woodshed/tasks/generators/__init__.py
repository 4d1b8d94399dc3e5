"""Ways to make tasks: of real packages, by a policy, from templates."""
