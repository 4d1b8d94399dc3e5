"""Engines sample tokens from a policy and can swap weights between two tokens of a running request."""
