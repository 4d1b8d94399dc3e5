"""Conversion between the items of OpenAI Responses and messages.

An assistant message corresponds to several items: its reasoning, its text, and each of its calls. A reply without text
and calls still has a message item, so that the client has something to send back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.gateway.errors import unsupported
from woodshed.gateway.fields import objects, string
from woodshed.gateway.messages import Message

_TEXTS = ("input_text", "output_text", "text")
_STARTS = ("rs_", "msg_", "fc_")
Item = dict[str, Any]
Namespaced = Mapping[str, tuple[str, str]]
"""Maps the policy's name of a function to (its namespace, its name there)."""


class _Reader:
    """Joins the items of a reply into one message.

    Items arrive in the order in which replies have them. Two replies may follow each other directly; ids that this
    server assigned tell them apart.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._reply: Message | None = None
        self._token: str | None = None
        self._spoken = False
        """True if the reply has its text or a call; then only calls may follow in it."""

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._reply = None

    def reasoning(self, text: str, id: Any) -> None:
        reply = self._assistant(id, fresh=True)
        if text:
            reply["reasoning_content"] = text

    def text(self, text: str, id: Any) -> None:
        self._assistant(id, fresh=self._spoken)["content"] = text
        self._spoken = True

    def call(self, call: Message, id: Any) -> None:
        self._assistant(id, fresh=False).setdefault("tool_calls", []).append(call)
        self._spoken = True

    def _assistant(self, id: Any, *, fresh: bool) -> Message:
        token = reply_of(id)
        if self._reply is None or fresh or (token and self._token and token != self._token):
            self._reply = {"role": "assistant", "content": ""}
            self.messages.append(self._reply)
            self._token, self._spoken = None, False
        self._token = self._token or token
        return self._reply


def read_items(items: list[Item]) -> list[Message]:
    """The messages of ``input``. Raises ApiError that names the item's field."""
    reader = _Reader()
    for i, item in enumerate(items):
        where = f"input[{i}]"
        kind = item.get("type", "message")
        if kind == "message":
            _read_message(reader, item, where)
        elif kind == "reasoning":
            reader.reasoning(_reasoning(item, where), item.get("id"))
        elif kind == "function_call":
            function = {k: string(item, k, f"{where}.") for k in ("name", "arguments")}
            if isinstance(space := item.get("namespace"), str):
                function["name"] = in_namespace(space, function["name"])
            call = {"id": string(item, "call_id", f"{where}."), "type": "function", "function": function}
            reader.call(call, item.get("id"))
        elif kind == "function_call_output":
            text = _texts(item.get("output"), f"{where}.output")
            reader.add({"role": "tool", "content": text, "tool_call_id": string(item, "call_id", f"{where}.")})
        else:
            raise unsupported(f"{where}.type", kind, "message, reasoning, function_call or function_call_output")
    return reader.messages


def _read_message(reader: _Reader, item: Item, where: str) -> None:
    role = item.get("role")
    text = _texts(item.get("content"), f"{where}.content")
    if role == "assistant":
        reader.text(text, item.get("id"))
    elif role in ("user", "system", "developer"):
        reader.add({"role": "user" if role == "user" else "system", "content": text})
    else:
        raise unsupported(f"{where}.role", role, "user, assistant, system or developer")


def _texts(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise unsupported(where, value, "a string or a list of text parts")
    texts = []
    for i, part in enumerate(objects(value, where)):
        if part.get("type") not in _TEXTS:
            raise unsupported(f"{where}[{i}].type", part.get("type"), "input_text or output_text")
        texts.append(string(part, "text", f"{where}[{i}]."))
    return "".join(texts)


def _reasoning(item: Item, where: str) -> str:
    """The reasoning text. Summaries and encrypted content are ignored, because they are not what was sampled."""
    parts = objects(item.get("content"), f"{where}.content")
    return "".join(string(part, "text", f"{where}.content[{i}].") for i, part in enumerate(parts))


def in_namespace(space: str, name: str) -> str:
    """Return the policy's name of a function in a namespace; the policy itself has no namespaces."""
    return f"{space}__{name}"


def reply_of(id: Any) -> str | None:
    """Return the token that all item ids of one reply share, None if ``write_items`` did not assign this id."""
    if not isinstance(id, str) or not id.startswith(_STARTS):
        return None
    parts = id.split("_")
    return parts[1] if len(parts) == 3 else None


def write_items(
    reply: Message, token: str, namespaced: Namespaced, logprobs: list[Item], *, complete: bool
) -> list[Item]:
    """The items of a reply; ``token`` makes their ids unique. Unless ``complete``, the last item is incomplete.
    ``logprobs`` are those of the reply's text."""
    items: list[Item] = []
    if thinking := reply.get("reasoning_content"):
        items.append({**reasoning_item(token), "content": [{"type": "reasoning_text", "text": thinking}]})
    calls = reply.get("tool_calls", ())
    if (text := reply.get("content")) or not calls:
        items.append({**message_item(token), "content": [text_part(text or "", logprobs)]})
    for i, call in enumerate(calls):
        items.append({**call_item(token, i, call, namespaced), "arguments": call["function"]["arguments"]})
    for item in items:
        item["status"] = "completed"
    if not complete:
        items[-1]["status"] = "incomplete"
    return items


def reasoning_item(token: str) -> Item:
    """A reasoning item at its start, without text."""
    return {"type": "reasoning", "id": f"rs_{token}_0", "status": "in_progress", "summary": [], "content": []}


def message_item(token: str) -> Item:
    return {"type": "message", "id": f"msg_{token}_0", "status": "in_progress", "role": "assistant", "content": []}


def call_item(token: str, index: int, call: Message, namespaced: Namespaced) -> Item:
    item = {
        "type": "function_call",
        "id": f"fc_{token}_{index}",
        "status": "in_progress",
        "call_id": call["id"],
        "name": call["function"]["name"],
        "arguments": "",
    }
    if item["name"] in namespaced:
        item["namespace"], item["name"] = namespaced[item["name"]]
    return item


def text_part(text: str, logprobs: list[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
