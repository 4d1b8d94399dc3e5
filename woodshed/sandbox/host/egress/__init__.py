"""What a box may reach outside: a filtering proxy, and routes to single services. Runs on the host's side."""
