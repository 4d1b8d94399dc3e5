"""The tools, one small family per file."""
