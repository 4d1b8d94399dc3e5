"""Tasks that grow with the policy: harder ones are made of kinds that became easy, unsolved ones are checked."""
