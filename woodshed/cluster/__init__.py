"""Execution of the planes' programs: supervised local subprocesses, and servers on the nodes of a Ray cluster."""
