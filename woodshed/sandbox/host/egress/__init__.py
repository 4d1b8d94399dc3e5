"""Network access of a box: a filtering proxy, and routes to single services. Runs on the host's side."""
