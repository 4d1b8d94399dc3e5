"""Tasks that grow with the policy: harder tasks are made from bug kinds that became easy, unsolved ones are checked."""
