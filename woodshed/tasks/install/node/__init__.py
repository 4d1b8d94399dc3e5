"""Install Node projects: a registry for npm, goals and recipes by rules."""
