"""Whole root filesystems for boxes (``BoxSpec.root``), made without a container engine and without root."""
