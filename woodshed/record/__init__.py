"""Records that the planes exchange, and their storage. Independent of Ray, HTTP and sandboxes."""
