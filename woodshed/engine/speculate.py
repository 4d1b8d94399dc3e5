"""Which requests get guesses, and how many. Engine's thread only; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .cache import RowCache
from .pace import Pace
from .request import Request
from .settings import EngineSettings

if TYPE_CHECKING:
    from .drafting import Drafter


class Speculation:
    """Asks the drafter before a step and learns from what the step kept. Counts both."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.drafted = self.accepted = 0

    def prepare(self, running: Sequence[Request], cache: RowCache, drafter: Drafter | None) -> None:
        """Drafts for the requests that decode, where the batch is small enough for guessing to pay."""
        if drafter is None or len(running) > self.settings.speculate_running:
            return
        wanted: dict[int, list[Request]] = {}
        for request in running:
            if request.started and request.total - int(cache.lengths[request.row]) == 1:
                request.pace = request.pace or Pace(self.settings.draft_tokens)
                count = min(request.pace.next(), request.limit - len(request.tokens) - 1)
                if count > 0:
                    wanted.setdefault(count, []).append(request)
        for count, requests in wanted.items():
            for request, draft in zip(requests, drafter.draft(requests, count)):
                request.draft = draft if request.matcher is None else draft[: request.matcher.fitting(draft)]

    def saw(self, request: Request, kept: int) -> None:
        """``kept`` tokens of the request's draft were right; the draft is used up."""
        if request.draft and request.pace is not None:
            request.pace.saw(len(request.draft), kept)
            self.drafted += len(request.draft)
            self.accepted += kept
            request.draft = []
