"""Dialects: the APIs that clients use. A dialect parses requests and writes replies; it does not handle tokens."""
