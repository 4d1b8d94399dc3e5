"""Rate of samples, and the interval at which progress is reported."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Every:
    """Timer: a call returns True if ``seconds`` have passed since the last True, or since the timer was made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def __call__(self) -> bool:
        if self._clock() - self._last < self._seconds:
            return False
        self._last = self._clock()
        return True


class Pace:
    """Samples per second over the last ``window`` seconds.

    Call ``at`` once before the first sample: those that are sampled together also end together, and counted from the
    end of the first one, the others would seem to have taken no time.
    """

    def __init__(self, window: float = 60.0, clock: Callable[[], float] = time.monotonic):
        self._window, self._clock = window, clock
        self._marks: deque[tuple[float, int]] = deque()

    def at(self, done: int) -> str:
        """Return the pace as text, with ``done`` samples finished by now; '' at the first call and when ``done`` falls,
        which begins another count."""
        now = self._clock()
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # another count has begun
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()
        then, before = self._marks[0]
        if now <= then:
            return ""
        rate = (done - before) / (now - then)
        return f"{rate:.1f} samples/s" if rate >= 1 else f"{rate:.2g} samples/s"
