"""Kinds of boxes: one folder for each."""
