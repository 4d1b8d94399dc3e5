"""An engine as a program of its own, and its client."""
