"""Export tasks as instances of SWE-bench and SWE-smith, and import instances as tasks."""
