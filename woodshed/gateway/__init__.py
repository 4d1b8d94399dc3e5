"""The gateway: OpenAI's dialect in front of an engine, recording every token."""
