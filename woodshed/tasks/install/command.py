"""``woodshed tasks install``: install several sources, one after the other; finished ones are not installed again.

Also says where the policy that plays the roles is served, and writes the transcripts of the roles.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.grading.install.match import judge_by
from woodshed.harness.endpoint import ChatEndpoint, HttpEndpoint
from woodshed.record.atomic import write_whole
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.sources.claim import claim
from woodshed.tasks.sources.spec import SourceSpec, distinct_names, parse_source

from .kit import SHARE
from .lock import NAME, Install, load_install
from .roles import AgentBuilder, AgentSetter, Transcript
from .run import Builder, Outcome, RuleSetter, Setter, ground_of, install
from .space import Boxes


@dataclass(frozen=True)
class PolicyPlace:
    """An OpenAI-compatible server: ``url`` (its root or its ``/v1``), ``model``, ``key``.

    All roles share the key, and so, behind a gateway, one trajectory.
    """

    url: str
    model: str
    key: str = field(repr=False)
    _open: list[HttpEndpoint] = field(default_factory=list, repr=False)

    async def open(self, role: str) -> ChatEndpoint:
        """The endpoint of a role; all roles share one, which ``close`` closes."""
        if not self._open:
            self._open.append(HttpEndpoint(self.url, self.key, self.model))
        return self._open[0]

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


def write_transcripts(transcripts: Iterable[Transcript], path: Path) -> None:
    """Write one JSON line per role: how it ended, its effort, all its messages. Without roles, write nothing."""
    lines = [
        json.dumps(
            {
                "role": t.role,
                "status": t.episode.status,
                "error": t.episode.error,
                "turns": t.episode.effort.turns,
                "tool_calls": t.episode.effort.tool_calls,
                "messages": t.episode.messages,
            }
        )
        + "\n"
        for t in transcripts
    ]
    if lines:
        write_whole(path, "".join(lines))


@dataclass(frozen=True)
class InstallWishes:
    """Options of ``tasks install``. ``policy``: plays both roles (None: rules do) and, with ``judge``, judges outputs.
    ``passing_share``: as in ``Ground``. The others are as in ``pipeline.pin.Wishes``."""

    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    seed: int = 0
    catalogue: str = ""
    policy: PolicyPlace | None = None
    judge: bool = False
    passing_share: float = SHARE
    roots: tuple[str, ...] = ()
    markers: str = ""


async def install_sources(
    sources: Sequence[str],
    backend: Backend,
    layers: LayerStore,
    out: Path,
    wishes: InstallWishes,
    progress: Callable[[int, int, str], None] | None = None,
    cache: Path | None = None,
) -> list[Outcome]:
    """Install the sources and return their outcomes, in order; installs that ``out`` holds already are reused.

    Raises PackageError if a source is not written properly or ``out`` cannot be used.
    """
    specs = list(dict.fromkeys(parse_source(text) for text in sources))
    outcomes: list[Outcome] = []
    with claim(out, NAME):
        have = {found.origin: found for found in (load_install(p.parent) for p in sorted(out.glob(f"*/{NAME}")))}
        new = [spec for spec in specs if spec.origin not in have]
        names = dict(zip(new, distinct_names(new, (p.name for p in out.iterdir()))))
        for spec in specs:
            if spec.origin in have:
                outcomes.append(_known(have[spec.origin]))
                continue

            def say(text: str) -> None:
                if progress:
                    progress(len(outcomes), len(specs), text)

            say(f"{names[spec]}: reading it")
            outcomes.append(
                await _one(
                    spec=spec,
                    name=names[spec],
                    boxes=Boxes(backend, layers),
                    out=out,
                    wishes=wishes,
                    say=say,
                    cache=cache,
                )
            )
    return outcomes


def _known(found: Install) -> Outcome:
    return Outcome(found.origin, found.targets, found.tries, found)


async def _one(
    spec: SourceSpec,
    name: str,
    boxes: Boxes,
    out: Path,
    wishes: InstallWishes,
    say: Callable[[str], None],
    cache: Path | None,
) -> Outcome:
    base = load_catalogue(Path(wishes.catalogue) if wishes.catalogue else None).wheels.get("pytest")
    if base is None:
        raise PackageError(f"{wishes.catalogue}: [wheels] has no group pytest, which runs the tests; add it")
    transcripts: list[Transcript] = []
    policy = wishes.policy
    try:
        ground = await asyncio.to_thread(
            ground_of,
            spec,
            name,
            base,
            out,
            code=wishes.code,
            tests=wishes.tests,
            roots=wishes.roots,
            markers=wishes.markers,
            cache=cache,
            passing_share=wishes.passing_share,
        )
        setter: Setter = RuleSetter()
        builder: Builder = ground.kit.builder(wishes.needs)
        judge = None
        if policy is not None:
            setter = AgentSetter(policy.open, boxes, transcripts=transcripts)
            builder = AgentBuilder(policy.open, boxes, policy.model, transcripts=transcripts)
            judge = judge_by(await policy.open("judge")) if wishes.judge else None
        outcome = await install(ground, setter, builder, boxes, seed=wishes.seed, say=say, judge=judge)
        if outcome.install is not None:
            await asyncio.to_thread(outcome.install.save, out / name)
        write_transcripts(transcripts, out / f".{name}-roles.jsonl")
        return outcome
    except PackageError as error:
        write_transcripts(transcripts, out / f".{name}-roles.jsonl")
        return Outcome(spec.origin, error=str(error) if name in str(error) else f"{name}: {error}")
    finally:
        if policy is not None:
            await policy.close()
