"""Tasks that a policy makes: it removes a feature, and what it did passes the same gates as a generated deletion."""
