"""Records that the planes exchange, and their storage. Knows nothing of Ray, HTTP or sandboxes."""
