"""The recorded beginning with which a forked trajectory opens.

Its tokens are context, because they are trained in the trajectory that sampled them. The engine gets exactly these ids,
followed by the tokens of the fork's own messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from woodshed.record.segment import Span

from .errors import invalid
from .messages import Message, normalise
from .recorder import Recorder
from .rendering import Rendering, Tools


@dataclass(frozen=True)
class Beginning:
    """A segment up to the end of one of its replies: ``messages`` and ``tools`` as the client sends them, ``tokens``,
    and ``spans``, which cover all tokens and all messages."""

    messages: Sequence[Message]
    tools: Tools
    tokens: Sequence[int]
    spans: Sequence[Span]

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": list(self.messages),
            "tools": self.tools,
            "tokens": list(self.tokens),
            "spans": [list(asdict(span).values()) for span in self.spans],
        }

    @staticmethod
    def from_json(data: Any) -> Beginning:
        """Read what a client sent. Raises ApiError."""
        if not isinstance(data, Mapping):
            raise invalid("beginning", "must be an object with messages, tools, tokens and spans")
        messages, tools, tokens, spans = (data.get(name) for name in ("messages", "tools", "tokens", "spans"))
        if not (isinstance(messages, list) and messages):
            raise invalid("beginning.messages", "must be a non-empty list")
        for i, message in enumerate(messages):
            normalise(message, i)
        if messages[-1]["role"] != "assistant":
            raise invalid("beginning.messages", "must end with a reply of the policy")
        if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise invalid("beginning.tools", "must be a list of tools")
        if not (isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens)):
            raise invalid("beginning.tokens", "must be a non-empty list of token ids")
        try:
            read = [Span(int(start), int(end), str(role), int(index)) for start, end, role, index in spans or ()]
        except (TypeError, ValueError):
            raise invalid("beginning.spans", "must be a list of [start, end, role, message]") from None
        return Beginning(messages, tools, tokens, read)

    def recorder(self, rendering: Rendering) -> Recorder:
        """Return a recorder with this as its first segment. Raises ApiError if the fields contradict each other."""
        size = rendering.tokenizer.vocab_size
        if not all(0 <= token < size for token in self.tokens):
            raise invalid("beginning.tokens", f"the policy knows ids 0 to {size - 1}")
        edge, ends = 0, [0] * len(self.messages)
        for span in self.spans:
            if span.start != edge or span.end < edge or not 0 <= span.message < len(ends):
                raise invalid("beginning.spans", f"{span} does not continue at token {edge} or has no message")
            edge = ends[span.message] = span.end
        if edge != len(self.tokens) or ends != sorted(ends) or ends[-1] != edge:
            raise invalid("beginning.spans", "must cover all tokens and all messages in order")
        recorder = Recorder(rendering)
        recorder.adopt(rendering.known(self.tools))
        (segment,) = recorder.segments
        segment.add_context(self.tokens)
        segment.messages, segment.ends, segment.spans = list(self.messages), ends, list(self.spans)
        stops = rendering.stop_ids
        segment.pending = () if not stops or self.tokens[-1] in stops else stops[:1]
        return recorder
