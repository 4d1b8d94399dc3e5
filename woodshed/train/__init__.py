"""The trainer: packed batches in, weight versions out. It knows loss parts and no algorithm."""
