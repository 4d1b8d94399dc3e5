"""An engine as a separate program, and its client."""
