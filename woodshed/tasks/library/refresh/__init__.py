"""Refreshing tasks by what policies did on them: too easy ones are hardened, unsolved ones are checked again."""
