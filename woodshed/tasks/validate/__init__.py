"""What every task must pass: gates, scans for leaks, near-duplicates, splits."""
