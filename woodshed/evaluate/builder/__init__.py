"""Build a benchmark from a team's own work: commits whose tests fail before and pass after, and recorded sessions."""
