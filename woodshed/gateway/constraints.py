"""Compiles a request's rules for its reply into a grammar for the engine.

A forced call, a schema of the text and a selection of tools are required: if they cannot be enforced, the request is
refused. Strict tools and ``parallel_tool_calls: false`` alone are preferences, which many clients send by default: if
no grammar can be used, the reply is sampled freely.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from woodshed.engine.grammar import MISSING, GrammarError, Grammars, library
from woodshed.engine.protocol import Engine
from woodshed.policy.formats.grammar import GrammarRefused, Json, Reply, to_lark

from .errors import ApiError, invalid
from .rendering import Rendering, Tools
from .request import ReplyRules, Request

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_OPENING = frozenset({"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"})
"""Schema keywords that determine which additional properties an object may have."""
_MOST_PROPERTIES = 400
_REMEMBERED = 64


class Constraints:
    """Compiles grammars of requests for one chat format and vocabulary."""

    def __init__(self, rendering: Rendering, engine: Engine) -> None:
        self._rendering, self._engine = rendering, engine
        self._grammars = Grammars.of(rendering.tokenizer)
        self._known: dict[tuple[int, bool, str], tuple[Tools, str | None]] = {}

    async def grammar(self, request: Request) -> str | None:
        """Return the grammar to sample under, None to sample freely. Raises ApiError if a required rule cannot be
        enforced."""
        rules = request.rules
        wished = request.call_tools and bool(request.tools) and (rules.one_call or bool(rules.strict))
        if not rules.demanded and not wished:
            return None
        refused = MISSING if library() is None else self._engine.grammars_refused()
        if refused is not None and not rules.demanded:
            return None
        tools = self._rendering.known(request.tools)
        name = (id(tools), request.call_tools, rules.key)
        known = self._known.get(name)
        if known is None:
            made = partial(self._made, rules, tools if request.call_tools else [], refused)
            text = await asyncio.get_running_loop().run_in_executor(self._grammars.compilers, made)
            # an entry keeps its list alive, so that no other list gets the same id
            known = self._known[name] = (tools, text)
            if len(self._known) > _REMEMBERED:
                self._known.pop(next(iter(self._known)))
        return known[1]

    def _made(self, rules: ReplyRules, tools: Tools, refused: str | None) -> str | None:
        """Compile the grammar; called outside the event loop, because there may be thousands of tools."""
        reply = _reply(rules, tools)
        if not rules.demanded and not rules.one_call and not reply.tools_strict:
            return None
        if refused is not None:
            raise invalid(_field(rules), f"cannot be forced here: {refused}", "unsupported_value")
        for field, what, schema in _schemas(reply, rules):
            if (large := too_large(schema)) is not None:
                raise invalid(field, f"{what} cannot be forced: {large}", "unsupported_schema")
        return self._compiled(reply, rules)

    def _compiled(self, reply: Reply, rules: ReplyRules) -> str | None:
        format, control = self._rendering.format, self._rendering.tokenizer.special_ids
        try:
            node = format.reply_grammar(reply)
            if node is None:
                return None
            text = to_lark(node, control)
            self._grammars.compile(text)
            return text
        except GrammarRefused as refused:
            message = f"chat format {format.name}: {refused}"
            raise invalid(_field(rules), message, "unsupported_value") from None
        except GrammarError as error:
            raise self._blame(reply, rules) or invalid(_field(rules), str(error)) from None

    def _blame(self, reply: Reply, rules: ReplyRules) -> ApiError | None:
        """Return the error for the first schema that does not compile on its own, None if all do."""
        for field, what, schema in _schemas(reply, rules):
            try:
                self._grammars.compile(to_lark(Json(schema), {}))
            except GrammarError as error:
                reason = str(error).rpartition("failed to compile JSON schema: ")[2]
                return invalid(field, f"{what} cannot be forced: {reason}", "unsupported_schema")
        return None


def _schemas(reply: Reply, rules: ReplyRules) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return (field of the request, description for errors, schema) of every enforced schema."""
    enforced: list[tuple[str, str, Mapping[str, Any]]] = [
        ("tools", f"the schema of {name!r}", schema) for name, schema in reply.functions() if schema is not None
    ]
    if reply.schema is not None:
        enforced.append((rules.schema_field, "the schema", reply.schema))
    return enforced


def too_large(schema: Any) -> str | None:
    """Return the reason why compiling a schema or sampling under it would take too long, None if it would not."""
    rest = [schema]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest += part
        elif isinstance(part, Mapping):
            rest += part.values()
            properties, multiple = part.get("properties"), part.get("multipleOf")
            if isinstance(properties, Mapping) and len(properties) > _MOST_PROPERTIES:
                return f"'properties' has {len(properties)} entries; at most {_MOST_PROPERTIES} can be"
            if isinstance(multiple, (int, float)) and not _simple(multiple):
                return f"'multipleOf' {multiple} has too many digits; at most three can be"
    return None


def _simple(number: float) -> bool:
    return math.isfinite(number) and len(Decimal(repr(number)).normalize().as_tuple().digits) <= 3


def _reply(rules: ReplyRules, tools: Tools) -> Reply:
    """Apply the rules to the given tools. Raises ApiError if they name a tool that is not among them."""
    by_name = {tool["function"]["name"]: tool for tool in tools}
    if rules.must_call and not tools:
        raise invalid("tool_choice", "a call is forced, but there are no tools")
    if unknown := [name for name in rules.only or () if name not in by_name]:
        raise invalid("tool_choice", f"there is no tool {unknown[0]!r}")
    names = list(by_name) if rules.only is None else [name for name in by_name if name in rules.only]
    strict = [name for name in names if name in rules.strict]
    forced = names if rules.must_call else strict
    return Reply(
        tools=tuple(_enforced(by_name[name]) for name in names),
        must_call=rules.must_call,
        many=not rules.one_call,
        schema=rules.schema,
        free=frozenset(set(names) - set(forced)),
    )


def _enforced(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool with the schema that is enforced for its arguments. Unless the schema says otherwise, the
    arguments may only have declared properties, so that the policy cannot invent others."""
    function = tool["function"]
    schema = function.get("parameters") or _NO_ARGUMENTS
    if schema.get("properties") and not _OPENING & schema.keys():
        schema = {**schema, "additionalProperties": False}
    if "type" not in schema and "$ref" not in schema:
        schema = {"type": "object", **schema}
    return {**tool, "function": {**function, "parameters": schema}}


def _field(rules: ReplyRules) -> str:
    """The request field to name in an error: the one with the strictest rule."""
    if rules.must_call or rules.only is not None:
        return "tool_choice"
    return rules.schema_field or "tools"
