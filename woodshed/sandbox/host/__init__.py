"""The host side of boxes, shared by the backends."""
