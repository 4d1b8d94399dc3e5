"""Fetch parts ahead of their decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from .manifest import Part, read_part
from .store import Store


def fetch_ahead(store: Store, parts: Sequence[tuple[int, Part]], *, ahead: int) -> Generator[bytes, None, None]:
    """The bytes of ``(version, part)``, in order, while the next ``ahead`` are on their way.

    At most ``ahead + 1`` parts are held. What goes wrong with a part is raised when its turn comes; see ``read_part``.
    """
    waiting = iter(parts)
    under_way: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(max(1, ahead), thread_name_prefix="weights") as pool:
        try:
            under_way.extend(pool.submit(read_part, store, *part) for part in islice(waiting, ahead))
            while True:
                under_way.extend(pool.submit(read_part, store, *part) for part in islice(waiting, 1))
                if not under_way:
                    return
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
