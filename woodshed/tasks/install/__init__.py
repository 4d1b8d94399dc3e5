"""Auto-install: find goals for a bare repository and a recipe that reaches them, replay it, lock it by hashes."""
