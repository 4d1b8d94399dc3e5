"""A trajectory as HTML that a person can read."""

from __future__ import annotations

import html
import json

from woodshed.record.trajectory import Trajectory


def transcript(trajectory: Trajectory) -> str:
    """The conversation with its calls and results, then status, outcome and effort. All text is escaped."""
    outcome = trajectory.outcome
    verdict = "resolved" if outcome and outcome.resolved else "not resolved"
    head = (
        f"<div class='verdict {'good' if verdict == 'resolved' else 'bad'}'>{verdict}</div>"
        f"<small>{html.escape(trajectory.status)} · {trajectory.effort.turns} turns · "
        f"{trajectory.effort.sampled_tokens} tokens sampled · versions {trajectory.version_range()}</small>"
    )
    return head + "".join(_message(m) for m in trajectory.messages if m.get("role") != "system")


def _message(message: dict[str, object]) -> str:
    role = str(message.get("role"))
    parts = []
    if content := message.get("content"):
        parts.append(html.escape(str(content)))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", {})
        parts.append(
            f"<b>{html.escape(str(function.get('name')))}</b> {html.escape(_arguments(function.get('arguments')))}"
        )
    return f"<pre class='{html.escape(role)}'>{chr(10).join(parts)}</pre>"


def _arguments(text: object) -> str:
    try:
        values = json.loads(str(text))
    except ValueError:
        return str(text)
    return "  ".join(f"{k}={v}" for k, v in values.items()) if isinstance(values, dict) else str(values)
