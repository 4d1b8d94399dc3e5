"""Auto-install: goals for a bare repository, a recipe that reaches them, replayed from scratch and locked by hashes."""
