"""What runs in a box, copied there whole: the standard library only."""
