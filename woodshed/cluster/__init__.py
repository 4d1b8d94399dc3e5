"""Where the planes' programs run: local subprocesses under supervision."""
