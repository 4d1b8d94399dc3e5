"""The file format of one training step: packed sequences with a weight stream per loss part.

Algorithms are not known here. A weight at position t applies to predicting token t from the tokens before it, so
the weight at position 0 of a sequence is always 0. The loss of a part is
``sum over t of weight[t] * part(t) / denominator``, the denominator a constant of the whole batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from woodshed.record.atomic import write_whole

from .hinted import Hinted, HintedMessage, pack_hinted
from .token_sets import TokenSets, merge

PARTS = {
    "rl": ("behaviour",),
    "ppo": ("behaviour",),
    "gspo": ("behaviour",),
    "ce": (),
    "ref_kl": ("behaviour", "reference"),
    "hint_kl": ("behaviour", "hint"),
}
"""The loss parts (see ``parts.py``) and what each needs to know of a token: its log-probability under the policy that
sampled it (``behaviour``) or under the reference, or the hint for its message (``hinted``)."""
_FORMAT = "woodshed-batch-1"


class BatchError(ValueError):
    """A batch is invalid; the message names the file and the field."""


@dataclass
class Sequence:
    """One sequence of a batch before packing; arrays are ``[T]`` (routes ``[T, L, K]``), see ``TrainBatch``."""

    tokens: NDArray[np.int32]
    weights: Mapping[str, NDArray[np.float32]]
    behaviour_logprobs: NDArray[np.float32] | None = None
    ref_logprobs: NDArray[np.float32] | None = None
    versions: NDArray[np.int32] | None = None
    routes: NDArray[np.int16] | None = None
    trajectory: str = ""
    allowed: TokenSets | None = None
    allowed_of: NDArray[np.int32] | None = None
    hinted: tuple[HintedMessage, ...] = ()


@dataclass
class TrainBatch:
    """N tokens of S sequences, one after the other.

    ``tokens`` int32 ``[N]``; ``lengths`` int32 ``[S]``; ``weights`` float32 ``[N]`` per loss part (signed);
    ``denominators`` one number above 0 per part; ``behaviour_logprobs`` float32 ``[N]`` (nan where not sampled);
    ``ref_logprobs`` float32 ``[N]`` (nan where unknown) or None (the trainer then computes those that ``ref_kl``
    needs); ``versions`` int32 ``[N]`` (-1 where not sampled); ``routes`` int16 ``[N, L, K]``, the K experts of each of
    L layers, or None; ``trajectories`` S ids. ``allowed``: token sets, and ``allowed_of`` int32 ``[N]``: number of the
    set that a token was sampled from, -1 for the whole vocabulary; both are None if no token was sampled from a set.
    ``hinted``: sequences for the teacher of ``hint_kl``, None if no message is marked. ``step`` counts from 1: training
    on the batch of step n makes PolicyVersion n. S may be 0 (a step with nothing to learn).
    """

    id: str
    step: int
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    weights: dict[str, NDArray[np.float32]]
    denominators: dict[str, float]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    trajectories: list[str]
    ref_logprobs: NDArray[np.float32] | None = None
    routes: NDArray[np.int16] | None = None
    info: dict[str, Any] = field(default_factory=dict)
    allowed: TokenSets | None = None
    allowed_of: NDArray[np.int32] | None = None
    hinted: Hinted | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 ``[S + 1]``: sequence i is tokens ``[offsets[i], offsets[i + 1])``."""
        return np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64)))

    def check(self, where: str = "batch") -> None:
        """Raise BatchError if the fields are inconsistent."""
        n = len(self.tokens)
        if len(self.lengths) and self.lengths.min() < 1:
            raise BatchError(f"{where}: lengths holds a sequence without tokens")
        if int(self.lengths.sum()) != n:
            raise BatchError(f"{where}: lengths sum to {int(self.lengths.sum())}, tokens has {n}")
        if len(self.trajectories) != len(self.lengths):
            raise BatchError(f"{where}: {len(self.trajectories)} trajectory ids for {len(self.lengths)} sequences")
        streams: dict[str, NDArray | None] = {f"weights[{k!r}]": v for k, v in self.weights.items()}
        for name in ("behaviour_logprobs", "versions", "ref_logprobs", "routes", "allowed_of"):
            streams[name] = getattr(self, name)
        for name, stream in streams.items():
            if stream is not None and len(stream) != n:
                raise BatchError(f"{where}: {name} has {len(stream)} entries, tokens has {n}")
        if self.routes is not None and self.routes.ndim != 3:
            raise BatchError(f"{where}: routes has shape {self.routes.shape}, expected [{n}, layers, k]")
        self._check_allowed(where)
        if self.hinted is not None and (problem := self.hinted.problem(self.tokens, self.offsets)):
            raise BatchError(f"{where}: {problem}")
        for part, weight in self.weights.items():
            self._check_part(part, weight, where)

    def _check_allowed(self, where: str) -> None:
        if self.allowed is None or self.allowed_of is None:
            if self.allowed is not None or self.allowed_of is not None:
                raise BatchError(f"{where}: allowed and allowed_of belong together")
            return
        if problem := self.allowed.problem():
            raise BatchError(f"{where}: allowed is inconsistent: {problem}")
        at = np.flatnonzero(self.allowed_of >= 0)
        if len(at) and int(self.allowed_of[at].max()) >= len(self.allowed):
            raise BatchError(
                f"{where}: allowed_of names a set that allowed, of {len(self.allowed)} sets, does not have"
            )
        if not self.allowed.contains(self.allowed_of[at], self.tokens[at]).all():
            raise BatchError(f"{where}: a token is not in the set that it was sampled from")

    def _check_part(self, part: str, weight: NDArray[np.float32], where: str) -> None:
        if part not in PARTS:
            raise BatchError(f"{where}: unknown loss part {part!r}; known: {', '.join(PARTS)}")
        denominator = self.denominators.get(part)
        if denominator is None or not np.isfinite(denominator) or denominator <= 0:
            raise BatchError(f"{where}: denominators[{part!r}] is {denominator}; it must be a number above 0")
        if not np.isfinite(weight).all():
            raise BatchError(f"{where}: weights[{part!r}] holds a value that is not finite")
        if np.any(weight[self.offsets[:-1]] != 0):
            raise BatchError(f"{where}: weights[{part!r}] weighs the first token of a sequence, which nothing predicts")
        used = weight != 0
        if "behaviour" in PARTS[part] and np.isnan(self.behaviour_logprobs[used]).any():
            raise BatchError(f"{where}: weights[{part!r}] weighs a token that was not sampled (no behaviour_logprobs)")
        if "reference" in PARTS[part] and self.ref_logprobs is not None and np.isnan(self.ref_logprobs[used]).any():
            raise BatchError(f"{where}: weights[{part!r}] needs ref_logprobs at every weighted token")
        if "hint" in PARTS[part]:
            marked = np.zeros(len(self.tokens), np.bool_)
            if self.hinted is not None:
                marked[self.hinted.batch_targets()] = True
            if np.any(used & ~marked):
                raise BatchError(f"{where}: weights[{part!r}] weighs a token of a message that has no hint (hinted)")

    def save(self, path: Path | str, *, fsync: bool = False) -> None:
        """Write one safetensors file, atomically. Raises BatchError."""
        path = Path(path)
        self.check(str(path))
        arrays = {"tokens": self.tokens, "lengths": self.lengths, "behaviour_logprobs": self.behaviour_logprobs}
        arrays |= {"versions": self.versions} | {f"weights.{k}": v for k, v in self.weights.items()}
        arrays |= {k: v for k in ("ref_logprobs", "routes", "allowed_of") if (v := getattr(self, k)) is not None}
        if self.allowed is not None:
            arrays |= {f"allowed.{k}": v for k, v in vars(self.allowed).items()}
        if self.hinted is not None:
            arrays |= {f"hinted.{k}": getattr(self.hinted, k) for k in Hinted.FIELDS}
        meta = {
            "format": _FORMAT,
            "id": self.id,
            "step": self.step,
            "denominators": self.denominators,
            "trajectories": self.trajectories,
            "info": self.info,
        }
        data = safetensors_bytes({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"batch": json.dumps(meta)})
        write_whole(path, data, fsync=fsync)

    @staticmethod
    def load(path: Path | str) -> TrainBatch:
        """Load and check a batch file. Raises FileNotFoundError, and BatchError for a file that is no valid batch."""
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            with safe_open(path, "np") as file:
                meta = json.loads((file.metadata() or {})["batch"])
                arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            if meta["format"] != _FORMAT:
                raise BatchError(f"{path}: format {meta['format']!r}, this program reads {_FORMAT!r}")
            batch = TrainBatch(
                meta["id"],
                meta["step"],
                arrays["tokens"],
                arrays["lengths"],
                {k.removeprefix("weights."): v for k, v in arrays.items() if k.startswith("weights.")},
                meta["denominators"],
                arrays["behaviour_logprobs"],
                arrays["versions"],
                meta["trajectories"],
                arrays.get("ref_logprobs"),
                arrays.get("routes"),
                meta["info"],
                allowed_of=arrays.get("allowed_of"),
                hinted=Hinted(*(arrays[f"hinted.{k}"] for k in Hinted.FIELDS)) if "hinted.at" in arrays else None,
            )
            if batch.allowed_of is not None:
                batch.allowed = TokenSets(*(arrays[f"allowed.{k}"] for k in ("bits", "ids", "ends")))
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise BatchError(f"{path}: not a batch file ({type(error).__name__}: {error})") from None
        batch.check(str(path))
        return batch


def pack(
    sequences: Iterable[Sequence],
    *,
    id: str,
    step: int,
    denominators: Mapping[str, float],
    info: Mapping[str, Any] | None = None,
) -> TrainBatch:
    """Concatenate sequences to a batch. Missing streams are filled with 0 (weights), nan (log-probabilities) or -1
    (versions, routes). Raises BatchError if the result is invalid."""
    rows = list(sequences)
    total = sum(len(r.tokens) for r in rows)
    route = next((r.routes for r in rows if r.routes is not None), None)
    batch = TrainBatch(
        id,
        step,
        np.zeros(total, np.int32),
        np.array([len(r.tokens) for r in rows], np.int32),
        {part: np.zeros(total, np.float32) for part in denominators},
        dict(denominators),
        np.full(total, np.nan, np.float32),
        np.full(total, -1, np.int32),
        [r.trajectory for r in rows],
        np.full(total, np.nan, np.float32) if any(r.ref_logprobs is not None for r in rows) else None,
        None if route is None else np.full((total, *route.shape[1:]), -1, np.int16),
        info=dict(info or {}),
        hinted=pack_hinted((r.tokens, r.hinted) for r in rows),
    )
    if any(r.allowed is not None for r in rows):
        sets = [None if r.allowed is None or r.allowed_of is None else (r.allowed, r.allowed_of) for r in rows]
        batch.allowed, batch.allowed_of = merge(sets, [len(r.tokens) for r in rows])
    at = 0
    for row in rows:
        span = slice(at, at := at + len(row.tokens))
        batch.tokens[span] = row.tokens
        for part, weight in row.weights.items():
            if part not in batch.weights:
                raise BatchError(f"batch {id}: a sequence has weights[{part!r}] but denominators has no {part!r}")
            batch.weights[part][span] = weight
        for name in ("behaviour_logprobs", "ref_logprobs", "versions", "routes"):
            if (value := getattr(row, name)) is not None:
                getattr(batch, name)[span] = value
    batch.check(f"batch {id}")
    return batch
