"""The trainer: packed batches in, weight versions out. It knows loss parts, but no algorithms."""
