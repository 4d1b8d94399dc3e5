"""Languages of packages: find, mutate and delete functions; projects and suites of Node."""
