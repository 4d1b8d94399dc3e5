"""The watch over a training run: evaluates the alarms after every step, logs those that fire, and pauses the stage.

``metrics/alarms.jsonl`` gets one line when an alarm begins to fire, and one for every pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from woodshed.record.jsonl import GrowingRows, JsonLines, read_jsonl
from woodshed.rollout.failures import RunPaused

from .alarms import ADVICE, firing, stalled
from .measure import Step, join
from .settings import AlarmSettings


class HealthWatch:
    """Reads the metrics files ``rollouts`` and ``trainer``, writes ``log``.

    ``start``: last step before the round that is watched; ``steps``: its last step, after which no alarm pauses. Steps
    that an earlier process evaluated are not evaluated again, except the newest one, which may have been trained after
    that process stopped; alarms that it logged are not logged twice. Steps that were trained before this process began
    only warn, so that a run that is resumed after a pause trains at least one more step.
    """

    def __init__(
        self,
        settings: AlarmSettings,
        *,
        start: int = 0,
        steps: int,
        rollouts: Path,
        trainer: Path,
        log: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.start, self.steps, self.clock = settings, start, steps, clock
        self._rollouts, self._trainer = GrowingRows(rollouts), GrowingRows(trainer)
        self._log = JsonLines(log)
        self._began = clock()
        self._firing: set[str] = set()
        self._lines = (0, 0)
        self._history: list[Step] = []
        earlier = self._log.rows()
        paused = bool(earlier) and earlier[-1]["action"] == "pause"
        self._logged = {(row["step"], row["alarm"]) for row in earlier if row["alarm"] != "stall"}
        self._resumed_at = self._trained()
        self._evaluated = max(start, int(earlier[-1]["step"]) if paused else self._resumed_at - 1)

    async def run(self, seconds: float = 1.0) -> None:
        """Call ``look`` every ``seconds``, for ever. Raises RunPaused."""
        while True:
            self.look()
            await asyncio.sleep(seconds)

    def look(self) -> None:
        """Evaluate the new steps. Raises RunPaused if an alarm fires whose action is to pause."""
        self._read()
        self._look_for_stall()
        for number in range(self._evaluated + 1, self._trained() + 1):
            self._evaluated = number
            found = firing([step for step in self._history if int(step["step"]) <= number], self.settings, self.start)
            self._firing &= {*found, "stall"}
            for name, message in found.items():
                self._fire(name, number, message)

    def _look_for_stall(self) -> None:
        if self.settings.stall == "off" or self._trained() >= self.steps:
            return
        decided = [float(step["time"]) for step in self._history]
        trained = [float(step["trainer"]["time"]) for step in self._history if "trainer" in step]
        message = stalled(decided, max([self._began, *decided, *trained]), self.clock(), self.settings)
        if message:
            self._fire("stall", self._trained(), message)
        else:
            self._firing.discard("stall")

    def _fire(self, name: str, step: int, message: str) -> None:
        trained_before = name != "stall" and step <= self._resumed_at
        pauses = self.settings.actions[name] == "pause" and self._trained() < self.steps and not trained_before
        begins = name not in self._firing and (step, name) not in self._logged
        if begins or pauses:
            action = "pause" if pauses else "warn"
            row = {"step": step, "time": self.clock(), "alarm": name, "action": action, "message": message}
            self._log.append(row)
        self._firing.add(name)
        if pauses:
            raise RunPaused(
                f"the alarm rl.alarms.{name} paused the run after step {step} of {self.steps}: {message}.\n"
                f"Look at the report (`woodshed report RUN`), and at {ADVICE[name]}.\n"
                "All work is kept. `woodshed run RUN` goes on, and pauses again at the next step where it fires; "
                f'`woodshed run RUN --set rl.alarms.{name}="warn"` goes on and only warns'
            )

    def _read(self) -> None:
        rollouts, trainer = self._rollouts.read(), self._trainer.read()
        if (lines := (len(rollouts), len(trainer))) != self._lines:
            self._lines = lines
            self._history = join(rollouts, trainer)

    def _trained(self) -> int:
        """Return the newest step that has a line in both files; 0 if there is none."""
        self._read()
        return max((int(step["step"]) for step in self._history if "trainer" in step), default=0)


def read_alarms(log: Path) -> list[dict[str, Any]]:
    """Return the alarms that fired, oldest first."""
    return read_jsonl(log)
