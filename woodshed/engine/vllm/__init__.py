"""vLLM as an engine: a client of its token-in/token-out server, and a vLLM extension that follows a weight chain."""
