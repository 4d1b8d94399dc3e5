"""Splits of a package's functions: whole features and classes are held out first, then single functions.

Every function is in one split, so no body that a held-out task asks for is the answer to a training task. Hashing every
function by itself would cut nearly every feature in two: if a fifth is held out, ten functions are all on one side in
only one case of ten. So features are drawn whole. A feature that overlaps a held-out one without being part of it is
trimmed to the functions of its own split (``groups.py``).

The plan is made from the coverage of the suite before the first candidate is tried, and kept in the build's folder; a
later start reads it from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.record.atomic import write_whole
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.settings import PackageTaskSettings

from .groups import class_of, feature_of

_BY_FEATURE = 0.6
"""Share of the held-out functions that is drawn as whole features or classes. The rest are single functions, so that
part of the code that all features share is held out too."""


def function_key(package: str, function: CoveredFunction) -> str:
    """Key of a function in the splits; a function is the unit that they keep apart."""
    return f"{package}:{function.module}:{function.name}"


@dataclass(frozen=True)
class Splits:
    """The split of each function of ``package``: from ``planned`` (key -> split), else by a hash of its key.

    ``share``: share of the functions that is held out. ``whole``: True if the whole package is held out.
    """

    package: str
    share: float
    whole: bool = False
    planned: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, function: CoveredFunction) -> str:
        """``heldout`` or ``train``."""
        if self.whole:
            return "heldout"
        key = function_key(self.package, function)
        return self.planned.get(key) or ("heldout" if _hash(key) < self.share * 2.0**64 else "train")

    def same_side(self, function: CoveredFunction, others: Iterable[CoveredFunction]) -> tuple[CoveredFunction, ...]:
        """Return the ``others`` that are in the split of ``function``."""
        split = self.of(function)
        return tuple(f for f in others if self.of(f) == split)


def unplanned(settings: PackageTaskSettings, package: str) -> Splits:
    """Splits of a package whose suite is not known: each function is split by its hash."""
    return Splits(package, settings.heldout_share, package in settings.heldout_packages)


def plan_splits(settings: PackageTaskSettings, suite: Suite) -> Splits:
    """The splits of a package, planned from what its suite covers; deterministic for a suite and a share."""
    bare = unplanned(settings, suite.package)
    if bare.whole:
        return bare
    keys = {f: function_key(suite.package, f) for f in suite.functions}
    ordered = sorted(suite.functions, key=lambda f: (_hash(keys[f]), keys[f]))
    target = settings.heldout_share * len(ordered)
    held: set[CoveredFunction] = set()
    for function in ordered:
        group = set(feature_of(function, suite) or class_of(function, suite))
        if group and len(held | group) <= _BY_FEATURE * target:
            held |= group
    for function in ordered:
        if len(held) + 1 > target + 0.5:
            break
        held.add(function)
    planned = {key: "heldout" if f in held else "train" for f, key in keys.items()}
    return Splits(suite.package, settings.heldout_share, planned=planned)


def kept_splits(path: Path, settings: PackageTaskSettings, suite: Suite, digest: str) -> Splits:
    """The plan in ``path`` if it is of the same archive (``digest``) and share, else a new one, written there."""
    made = plan_splits(settings, suite)
    if made.whole:
        return made
    head = {"package": suite.package, "digest": digest, "share": settings.heldout_share}
    try:
        table = json.loads(path.read_text("utf-8"))
        if {key: table[key] for key in head} == head:
            known = {str(key): "heldout" if value == "heldout" else "train" for key, value in table["planned"].items()}
            return Splits(suite.package, settings.heldout_share, planned=known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    write_whole(path, json.dumps({**head, "planned": dict(made.planned)}, indent=1))
    return made


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
