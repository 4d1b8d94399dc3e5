"""Tasks from real open-source packages: one injected bug or one deleted function, judged by the package's own tests."""
