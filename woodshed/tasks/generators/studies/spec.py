"""A study as pure data, before it is written to disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from woodshed.tasks.languages.python import Mutation

from .function import Case, Split, StudyFunction


@dataclass(frozen=True)
class StudySpec:
    """Three modules ``modules[i].py``, each one function; ``mutation`` was made in module number ``broken``.

    ``failing`` are the case numbers of that module which the mutation breaks (at least one is visible).
    """

    name: str
    split: Split
    seed: int
    modules: tuple[str, ...]
    functions: tuple[StudyFunction, ...]
    broken: int
    mutation: Mutation
    failing: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f.key for f in self.functions)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> StudySpec:
        functions = tuple(
            StudyFunction(f["key"], f["name"], f["source"], tuple(Case(c["args"], c["want"]) for c in f["cases"]))
            for f in data["functions"]
        )
        plain = {k: data[k] for k in ("name", "split", "seed", "broken")}
        return StudySpec(
            **plain,
            modules=tuple(data["modules"]),
            functions=functions,
            mutation=Mutation(**data["mutation"]),
            failing=tuple(data["failing"]),
        )
