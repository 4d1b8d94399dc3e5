"""Node projects in the task factory: npm sources, JavaScript mutations, suites run by mocha, tape or node:test."""
