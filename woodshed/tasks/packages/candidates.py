"""Which function of a package becomes a task, what is done to it, and which split it belongs to. Runs nothing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from woodshed.tasks.mutate import delete_body, mutations, pick

from .prepare import CoveredFunction, Suite
from .settings import PackageTaskSettings

_SKIPPED = frozenset(["__repr__", "__str__", "__del__", "__init_subclass__", "__getattr__", "__setattr__"])


@dataclass(frozen=True)
class Candidate:
    """``source`` is the whole changed module; ``detail`` is the mutation kind or ``delete_function``; ``line``
    (1-based) is the one that a mutation changed, 0 for a deletion."""

    package: str
    function: CoveredFunction
    kind: str
    detail: str
    source: bytes
    line: int
    split: str

    @property
    def key(self) -> str:
        return function_key(self.package, self.function)

    @property
    def slug(self) -> str:
        """File name of the task: readable, unique for the change."""
        digest = hashlib.sha256(f"{self.key}:".encode() + self.source).hexdigest()[:8]
        name = "".join(c if c.isalnum() else "-" for c in self.function.name.lower()).strip("-")
        return f"{self.package}-{name}-{self.kind.partition('_')[0]}-{digest}"


def function_key(package: str, function: CoveredFunction) -> str:
    """The unit that splits keep apart."""
    return f"{package}:{function.module}:{function.name}"


def split_of(settings: PackageTaskSettings, package: str, function: CoveredFunction) -> str:
    """``heldout`` for the functions of a held-out package and for a hashed share of all others, else ``train``."""
    if package in settings.heldout_packages:
        return "heldout"
    digest = hashlib.sha256(function_key(package, function).encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") < settings.heldout_share * 2.0**64 else "train"


def candidates(settings: PackageTaskSettings, suite: Suite, workspace: Mapping[str, bytes]) -> Iterator[Candidate]:
    """Candidates in the order in which they are tried, the same for the same seed; one for each function.

    The kind offered least so far is tried first; a function to which it does not apply is offered the others.
    """
    rng = random.Random(f"{settings.seed}:{suite.package}")
    functions = [f for f in suite.functions if f.name.rpartition(".")[2] not in _SKIPPED and f.statements >= 2]
    rng.shuffle(functions)
    offered = dict.fromkeys(settings.kinds, 0)
    for function in functions:
        source = workspace[function.module].decode()
        if "\r" in source:
            continue  # line-wise edits would mix line ends
        for kind in sorted(offered, key=lambda k: offered[k]):
            made = _change(kind, function, source, rng)
            if made is not None:
                detail, changed, line = made
                split = split_of(settings, suite.package, function)
                yield Candidate(suite.package, function, kind, detail, changed.encode(), line, split)
                offered[kind] += 1
                break


def _change(kind: str, function: CoveredFunction, source: str, rng: random.Random) -> tuple[str, str, int] | None:
    if kind == "delete_function":
        if function.statements < 3:
            return None
        return kind, delete_body(source, function.name), 0
    options = mutations(source, function=function.name, keep_format=True)
    if not options:
        return None
    mutation = pick(rng, options)
    return mutation.kind, mutation.source, mutation.line
