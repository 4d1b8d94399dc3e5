"""Where the planes' programs run: local subprocesses under supervision, and servers on the nodes of a Ray cluster."""
