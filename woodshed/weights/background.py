"""Publishing in a background thread: training pauses only while its weights are copied.

Back-pressure: training never waits for the store. While a version is being written only the newest snapshot is kept;
the versions between are skipped and counted (a delta names its base, so numbers may be left out), and the newest is
written as soon as the writer is free. Memory is bounded: base, the snapshot being written, and the newest.

With several ranks the threads agree on the next version: the newest that any rank was given, since the other ranks are
about to get it too. Until they agree, a rank keeps up to three snapshots, and training waits if there are more.
"""

from __future__ import annotations

import threading
import time

from .chain import Publisher
from .errors import ChainError
from .image import Image, State

_MOST = 3


class BackgroundPublisher:
    """Publishes in a thread. With several ranks each has one, and all must publish the same versions in the same order.

    An error in the thread is raised by the next call of ``publish``, ``check`` or ``flush``, and nothing is published
    after it: make a new Publisher, which continues where the chain ends.
    """

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.published = 0
        self.skipped = 0
        self.copy_seconds = 0.0
        """Seconds that publishing has cost the trainer so far."""
        self._waiting: dict[int, Image] = {}
        self._offered: int | None = None
        self._busy = False
        self._closing = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="publisher", daemon=True)
        self._thread.start()

    @property
    def head(self) -> int | None:
        """Newest complete version."""
        return self.publisher.head

    def publish(self, version: int, state: State) -> None:
        """Copy ``state`` and return; ``version`` is written as soon as the writer is free, unless a newer one comes
        first."""
        self.check()
        began = time.perf_counter()
        image = self.publisher.snapshot(state)
        with self._changed:
            self._waiting[version] = image
            if self._offered is None:
                self._keep(version)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failure is not None or len(self._waiting) <= _MOST)
        self.copy_seconds += time.perf_counter() - began

    def check(self) -> None:
        """Raise the error of the thread, if there was one."""
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Wait until the newest version given to ``publish`` is visible."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._waiting or self._busy))
        self.check()

    def close(self) -> None:
        """Flush, and end the thread."""
        try:
            self.flush()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()

    def _main(self) -> None:
        try:
            while (mine := self._offer()) is not None:
                agreed = max(self.publisher.ranks.exchange(mine))
                self.publisher.write(agreed, self._take(agreed))
                with self._changed:
                    self.published += 1
                    self._busy = False
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._failure = error
                self._waiting.clear()
                self._changed.notify_all()

    def _offer(self) -> int | None:
        """Wait for a version and return the newest; None when closed. No snapshot is dropped from now until
        ``_take``."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if not self._waiting:
                return None
            self._busy = True
            self._offered = max(self._waiting)
            return self._offered

    def _take(self, version: int) -> Image:
        """Wait for the snapshot of the version that the ranks agreed on, and return it."""
        with self._changed:
            self._changed.wait_for(lambda: version in self._waiting or self._closing)
            if version not in self._waiting:
                raise ChainError(
                    f"version {version} was published on another rank and not on this one (its newest is "
                    f"{max(self._waiting, default=None)}); publish the same versions on every rank"
                )
            image = self._waiting.pop(version)
            self._offered = None
            self.skipped += len([v for v in self._waiting if v < version])
            self._waiting = {v: i for v, i in self._waiting.items() if v > version}
            if self._waiting:
                self._keep(max(self._waiting))
            self._changed.notify_all()
            return image

    def _keep(self, version: int) -> None:
        """Drop all waiting snapshots but this one."""
        self.skipped += len(self._waiting) - 1
        self._waiting = {version: self._waiting[version]}
