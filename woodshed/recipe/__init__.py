"""The typed recipe of a run: composes every folder's own settings; TOML and overrides; imports no torch."""
