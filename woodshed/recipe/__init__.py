"""The typed recipe of a run: combines every folder's own settings; loads TOML with overrides. Imports no torch."""
