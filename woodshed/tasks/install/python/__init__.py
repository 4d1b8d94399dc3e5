"""Install Python projects: an index for pip, pytest plugins, goals and recipes by rules."""
