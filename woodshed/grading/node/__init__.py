"""The ``node`` grader: tests of JavaScript projects, run by mocha, tape or node:test in a box."""
