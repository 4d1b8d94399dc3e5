"""Grammars of completions: a small tree that a chat format builds, and its text in the Lark dialect of llguidance.

A control token is written as its id if the vocabulary has it, else as its characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woodshed.policy.tokenizer import Piece

ANY = "(?s:.*)"
"""Regular expression of any text."""


class GrammarRefused(ValueError):
    """A chat format cannot force what is asked for; the message says what and why."""


@dataclass(frozen=True)
class Json:
    """A JSON value of this schema on one line, with the separators that ``json.dumps`` writes."""

    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Text:
    """Text that ``pattern`` (Rust's regex syntax) matches whole and that contains none of ``without``, then ``end``.

    ``end`` belongs to the text because a lexer that has read too far does not go back. If ``end`` is None, the text
    ends the completion or a control token follows it.
    """

    pattern: str = ANY
    end: Piece | None = None
    without: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    """Regular expressions that the text must not match."""


@dataclass(frozen=True)
class Seq:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """``part`` at least ``least`` times, at most ``most`` (None: any number)."""

    part: Node
    least: int = 0
    most: int | None = None


Node = Piece | Json | Text | Seq | Choice | Repeat


def seq(*parts: Node | str) -> Seq:
    """Sequence of the parts; strings are plain text."""
    return Seq(tuple(Piece(part) if isinstance(part, str) else part for part in parts))


def optional(part: Node) -> Repeat:
    return Repeat(part, 0, 1)


def quoted(text: str) -> str:
    """Regular expression that matches ``text`` and nothing else."""
    return "".join("\\" + c if c in r"\.+*?()|[]{}^$/&~-#" else "\\n" if c == "\n" else c for c in text)


def to_lark(node: Node, control_tokens: Mapping[str, int]) -> str:
    """Write the grammar as text; ``control_tokens`` maps the vocabulary's control tokens to ids."""
    writer = _Writer(control_tokens)
    start = writer.write(node)
    return "\n".join(['%llguidance {"no_forcing": true}', f"start: {start}", *writer.rules, ""])


class _Writer:
    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self._control = control_tokens
        self.rules: list[str] = []
        self._names: dict[str, str] = {}

    def write(self, node: Node) -> str:
        if isinstance(node, Piece):
            return self._piece(node)
        if isinstance(node, Json):
            return self._named("j", "%json " + _schema(node.schema))
        if isinstance(node, Text):
            return self._text(node)
        if isinstance(node, Seq):
            return " ".join(self.write(part) for part in node.parts if part != Piece("")) or '""'
        if isinstance(node, Choice):
            return "(" + " | ".join(self.write(option) for option in node.options) + ")"
        times = f"{{{node.least},{'' if node.most is None else node.most}}}"
        return f"({self.write(node.part)}){times}"

    def _piece(self, piece: Piece) -> str:
        if piece.special and (token := self._control.get(piece.text)) is not None:
            return f"<[{token}]>"
        return json.dumps(piece.text, ensure_ascii=False)

    def _text(self, text: Text) -> str:
        end = text.end
        without = (*text.without, *([end.text] if end is not None else []))
        unlike = [f"{ANY}{quoted(part)}{ANY}" for part in without] + list(text.unlike)
        body = " & ".join([f"/{text.pattern}/", *(f"~/{pattern}/" for pattern in unlike)])
        if end is None:
            return self._named("T", body)
        if end.special and end.text in self._control:
            return f"{self._named('T', body)} {self._piece(end)}"
        return self._named("T", f"({body}) {json.dumps(end.text, ensure_ascii=False)}")

    def _named(self, letter: str, body: str) -> str:
        """Return the name of the rule with this body; equal bodies share a rule."""
        if body not in self._names:
            self._names[body] = f"{letter}{len(self._names)}"
            self.rules.append(f"{self._names[body]}: {body}")
        return self._names[body]


def _schema(schema: Mapping[str, Any]) -> str:
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json.dumps({**schema, "x-guidance": style})


def arguments_of(schema: Mapping[str, Any] | None) -> Json:
    """Grammar of a call's arguments as JSON."""
    return Json({"type": "object"} if schema is None else schema)


def any_of(options: Sequence[Node]) -> Node:
    """Grammar of a text that one of ``options`` matches."""
    return options[0] if len(options) == 1 else Choice(tuple(options))


@dataclass(frozen=True)
class Reply:
    """Requirements on a completion.

    ``tools`` are those that may be called, in the shape of Chat Completions; ``parameters`` is the schema that their
    arguments have to follow. ``must_call``: the reply consists of calls; else it may also be text, which follows
    ``schema`` if there is one. ``many``: more than one call is allowed. ``free``: names of tools whose arguments may be
    any object.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: bool = False
    many: bool = True
    schema: Mapping[str, Any] | None = None
    free: frozenset[str] = frozenset()

    @property
    def tools_strict(self) -> list[str]:
        """Names of the tools whose arguments follow their schema."""
        return [tool["function"]["name"] for tool in self.tools if tool["function"]["name"] not in self.free]

    def functions(self) -> list[tuple[str, Mapping[str, Any] | None]]:
        """Return (name, schema of the arguments) of each tool; the schema is None if any object is allowed."""
        functions = [tool["function"] for tool in self.tools]
        return [(f["name"], None if f["name"] in self.free else f["parameters"]) for f in functions]

    def rest(self, call: Node, between: Node) -> list[Node]:
        """Grammar of the calls after the first."""
        return [Repeat(Seq((between, call)))] if self.many else []

    def options(self, *, calls: Node, text: Node, text_and_calls: Node) -> Node:
        """Grammar of the whole reply from a format's grammars of its parts. ``text``: free text that is not read as a
        call."""
        if self.must_call:
            return calls
        if self.schema is not None:
            return any_of([Json(self.schema), *([calls] if self.tools else [])])
        return any_of([text, *([text_and_calls] if self.tools else [])])
