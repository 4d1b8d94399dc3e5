"""vLLM as an engine: a client of its token-in/token-out server, and an extension of vLLM that follows a weight chain."""
