"""Tasks from collections of exercises that a person has on disk: a program to write or to mend, with its tests."""
