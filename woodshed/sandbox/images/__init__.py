"""Whole root filesystems for boxes, made without an engine and without root: what ``BoxSpec.root`` takes."""
