"""The ``woodshed`` command: one file for each group of commands; arguments and screens, no logic."""
