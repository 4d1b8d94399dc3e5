"""Reward terms beside solving the task."""
