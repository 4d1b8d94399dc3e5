"""The trainer ranks that publish one chain together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from .errors import ChainError

T = TypeVar("T")


class Ranks:
    """Collectives of the publishing ranks. Every rank calls the same methods in the same order; without
    torch.distributed there is one rank.

    The ranks have their own process group (gloo), because publishing runs in a thread beside the trainer's collectives.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world = 1 if group is None else dist.get_world_size(group)

    @staticmethod
    def all(timeout: timedelta = timedelta(minutes=30)) -> Ranks:
        """Return all ranks of the running job, or the only one. Collective: creates a process group. ``timeout`` is how
        long a rank waits for the other ranks before it raises."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return Ranks()
        return Ranks(dist.new_group(backend="gloo", timeout=timeout))

    def exchange(self, mine: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self._group is None:
            return [mine]
        answers: list[T] = [mine] * self.world
        dist.all_gather_object(answers, mine, group=self._group)
        return answers

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do the same work on every rank and return all results, or raise on all ranks if it failed on one.

        The rank that failed raises its own error. The other ranks raise an error that names that rank: ChainError for
        ChainError, OSError (worth a retry) for anything else.
        """
        mine: T | None = None
        failure: Exception | None = None
        try:
            mine = work()
        except Exception as error:
            failure = error
        told = None if failure is None else (isinstance(failure, ChainError), str(failure) or repr(failure))
        answers = self.exchange((mine, told))
        if failure is not None:
            raise failure
        for rank, (_, problem) in enumerate(answers):
            if problem is not None:
                raise (ChainError if problem[0] else OSError)(f"rank {rank}: {problem[1]}")
        return [value for value, _ in answers]  # type: ignore[misc]
