"""Records that travel between the planes. Knows nothing of Ray, HTTP or sandboxes."""
