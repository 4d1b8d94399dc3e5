"""Node projects: npm packages, functions and mutations of JavaScript, suites run by mocha, tape or node:test."""
