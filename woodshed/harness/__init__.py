"""The coding agent: loop, tools, prompt, self-summary. Talks to a Chat Completions endpoint and a Sandbox."""
