"""vLLM as an engine: a client of its token-in/token-out server, and what runs inside vLLM to follow a weight chain."""
