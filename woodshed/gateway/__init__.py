"""The gateway: serves the APIs that agents use, in front of an engine, and records every token."""
