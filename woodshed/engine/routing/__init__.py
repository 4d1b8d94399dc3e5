"""Routing of requests over several engines."""
