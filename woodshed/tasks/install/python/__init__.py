"""Setting up Python projects: an index for pip, plugins of pytest, goals and recipes by rule."""
