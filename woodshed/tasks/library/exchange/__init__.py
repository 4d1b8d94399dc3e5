"""Tasks as instances of other people's datasets, and back: SWE-bench and SWE-smith."""
