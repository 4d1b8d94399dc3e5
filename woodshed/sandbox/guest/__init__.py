"""The code that runs inside boxes; it is copied there whole and uses the standard library only."""
