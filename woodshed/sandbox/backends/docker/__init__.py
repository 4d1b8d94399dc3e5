"""Boxes in containers of docker, or of podman, which takes the same commands."""
