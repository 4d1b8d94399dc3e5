"""What clients speak. A dialect parses requests and writes replies; it knows nothing of tokens."""
