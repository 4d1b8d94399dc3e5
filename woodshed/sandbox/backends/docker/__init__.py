"""Boxes by a container engine: docker, or podman, which takes the same commands."""
