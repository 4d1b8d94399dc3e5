"""Boxes as a program of its own on another host, and its client."""
