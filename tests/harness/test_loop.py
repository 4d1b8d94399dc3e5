from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from woodshed.harness.endpoint import HttpEndpoint, pooled_client
from woodshed.harness.episode import Episode, Moment, Observer
from woodshed.harness.errors import EndpointLost
from woodshed.harness.loop import run_episode
from woodshed.harness.prompt import summary_text
from woodshed.harness.registry import ToolRegistry
from woodshed.harness.settings import (
    ALL_TOOLS,
    REQUEST,
    HarnessSettings,
    LimitSettings,
    RetrySettings,
    SummarySettings,
)
from woodshed.harness.tools.base import ToolResult
from woodshed.policy.formats.compact import CompactFormat
from woodshed.sandbox.protocol import SandboxError

from .conftest import Script, Step, call, say, serve
from .folder_box import FolderBox

SETTINGS = HarnessSettings(tools=(*ALL_TOOLS, "edit_line", "undo"), system_prompt="sys")
READ = ("read_file", {"path": "ridge.py"})
OVERFLOW = JSONResponse({"error": {"code": "context_length_exceeded", "message": "too long"}}, 400)


def play(
    box: Any, *steps: Step, settings: HarnessSettings = SETTINGS, on_event: Observer | None = None, **kwargs: Any
) -> tuple[Episode, Script]:
    script = Script(steps)

    async def go() -> Episode:
        async with serve(script) as url, pooled_client() as client:
            endpoint = HttpEndpoint(url, "key-1", "m", client, retry=RetrySettings(attempts=3, first_delay=0.0))
            return await run_episode("do it", box, endpoint, settings, on_event=on_event, **kwargs)

    return asyncio.run(go()), script


def limits(**values: Any) -> HarnessSettings:
    return SETTINGS.model_copy(update={"limits": LimitSettings(**values)})


def test_a_whole_episode(box: FolderBox) -> None:
    fix = ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return x + 1"})
    box._write({"t.py": b"import ridge\nprint('PASS' if ridge.f(1) == 2 else 'FAIL')\n"})
    episode, script = play(
        box,
        call(("run_tests", {}), prompt=10, sampled=2),
        call(fix, prompt=20, sampled=9, thinking=4),
        call(("run_tests", "{}"), prompt=31, sampled=2),
        call(("finish", {"message": "done"}), prompt=35, sampled=3),
        test_command="python t.py",
    )
    assert episode.status == "submitted" and episode.error == ""
    assert [e.result.split("\n")[0] for e in episode.events] == ["FAIL", "ok", "PASS", "ok"]
    assert [e.exit_code for e in episode.events] == [0, None, 0, None]
    assert [e.turn for e in episode.events] == [1, 2, 3, 4] and all(e.seconds > 0 for e in episode.events)
    effort = episode.effort
    assert (effort.turns, effort.tool_calls, effort.invalid_calls, effort.test_runs, effort.edits) == (4, 4, 0, 2, 1)
    assert (effort.prompt_tokens, effort.sampled_tokens, effort.tool_output_tokens) == (10, 16, 8 + 2 + 2)
    assert (effort.thinking_tokens, effort.tool_call_tokens, effort.final_message_tokens) == (4, 9, 3)
    # Every token of the last context is in exactly one of the three classes.
    assert effort.prompt_tokens + effort.sampled_tokens + effort.tool_output_tokens == 35 + 3
    first = script.requests[0]
    assert first["messages"] == [{"role": "system", "content": "sys"}, {"role": "user", "content": "do it"}]
    assert [t["function"]["name"] for t in first["tools"]] == list(SETTINGS.tools)
    assert first["model"] == "m" and first["max_tokens"] == 4096 and script.keys[0] == "Bearer key-1"
    for before, after in zip(script.requests, script.requests[1:], strict=False):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    assert episode.messages[:-2] == script.requests[-1]["messages"]


@pytest.mark.parametrize(
    ("calls", "final"),
    [
        ([("finish", {"message": "done"})], 300),
        ([("finish", {"message": 1})], 300),
        ([("finish", {"message": "done"}), ("finish", {})], 300),
        ([READ, ("finish", {"message": "done"})], 0),
        ([READ], 0),
        ([("fly", {})], 0),
    ],
)
def test_a_reply_that_only_finishes_is_a_final_message(
    box: FolderBox, calls: list[tuple[str, Any]], final: int
) -> None:
    episode, _ = play(box, call(*calls, prompt=9, sampled=320, thinking=20), settings=limits(turns=1))
    effort = episode.effort
    assert (effort.thinking_tokens, effort.tool_call_tokens, effort.final_message_tokens) == (20, 300 - final, final)


def test_a_plain_message_ends_or_is_an_error(box: FolderBox) -> None:
    episode, _ = play(box, call(READ), say("All good.", prompt=5, sampled=3))
    assert episode.status == "submitted" and episode.effort.final_message_tokens == 3
    strict = SETTINGS.model_copy(update={"plain_message_ends": False})
    episode, script = play(box, say("hm"), call(("finish", {})), settings=strict)
    assert episode.status == "submitted" and episode.effort.invalid_calls == 1
    told = {"role": "user", "content": "error: no call: every reply must call a tool"}
    assert script.requests[1]["messages"][-1] == told
    assert episode.events[0].error == "no_call" and episode.events[0].raw == "hm"


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (say(""), "no_call"),
        (say(None), "no_call"),
        (say("I was going to", finish="length"), "cut_off"),
        ({**say(""), "message": {"role": "assistant", "content": "<call>", "parse_error": "bad"}}, "malformed_call"),
        (call(("fly", {})), "unknown_tool"),
        (call(("read_file", "{not json")), "invalid_arguments"),
        (call(("read_file", "[]")), "invalid_arguments"),
        (call(("read_file", {"path": 1})), "invalid_arguments"),
        (call(("", "")), "unknown_tool"),
    ],
)
def test_three_bad_turns_end_the_episode(box: FolderBox, step: Step, error: str) -> None:
    episode, script = play(box, step)
    assert episode.status == "repeated_format_error"
    assert [e.error for e in episode.events] == [error] * 3
    assert episode.effort.turns == 3 and episode.effort.invalid_calls == 3 and len(script.requests) == 3


def test_a_call_that_could_not_be_read_beside_one_that_could(box: FolderBox) -> None:
    step = call(READ)
    step["message"]["parse_error"] = "second call is cut"
    episode, script = play(box, step, say("end"))
    assert episode.status == "submitted" and episode.effort.invalid_calls == 1
    assert [e.error for e in episode.events] == [None, "malformed_call"]
    assert [m["role"] for m in script.requests[1]["messages"][2:]] == ["assistant", "tool", "user"]
    assert "parse_error" not in script.requests[1]["messages"][2]


@pytest.mark.parametrize(
    ("text", "errors"),
    [("fly away", ["unknown_tool", "malformed_call"]), ("edit a.py 1", ["invalid_arguments", "malformed_call"])],
)
def test_one_call_that_the_compact_format_cannot_parse_counts_once(
    box: FolderBox, text: str, errors: list[str]
) -> None:
    """The format makes a call of it and says what is wrong, and the policy is told both."""
    settings = SETTINGS.model_copy(update={"tools": ("read_file", "edit_line", "finish")})
    parsed = CompactFormat().parse(text, ToolRegistry(settings.tools, settings).schemas())
    step = call((parsed.tool_calls[0].name, parsed.tool_calls[0].arguments_json))
    step["message"]["parse_error"] = parsed.error
    episode, _ = play(box, step, call(("finish", {})), settings=settings)
    assert [event.error for event in episode.events[:-1]] == errors
    assert episode.status == "submitted" and episode.effort.turns == 2 and episode.effort.invalid_calls == 1


def test_a_good_call_resets_the_count_and_failures_of_tools_are_not_bad(box: FolderBox) -> None:
    bad, good = call(("fly", {})), call(("fly", {}), READ)
    episode, _ = play(box, bad, bad, good, bad, bad, say("end"))
    assert episode.status == "submitted" and episode.effort.invalid_calls == 5
    failing = call(("read_file", {"path": "none"}))
    episode, _ = play(box, *[failing] * 5, say("end"))
    assert episode.status == "submitted" and episode.effort.invalid_calls == 0


def test_every_call_gets_one_result_in_order_and_reads_run_together(box: FolderBox) -> None:
    running, most, log = 0, 0, []
    read = box.read

    async def slow(path: str, **kwargs: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        log.append(path)
        return await read(path, **kwargs)

    box.read = slow  # type: ignore[method-assign]
    edit = ("edit_line", {"path": "ridge.py", "line": 2, "text": "    return 7"})
    other = ("edit_line", {"path": "pkg/a.py", "line": 2, "text": "A = 2"})
    reads = [("read_file", {"path": p}) for p in ("ridge.py", "pkg/a.py", "ridge.py")]
    episode, script = play(box, call(*reads, edit, ("fly", {}), other, reads[0], reads[1]), say("end"))
    answers = script.requests[1]["messages"][3:]
    assert [m["tool_call_id"] for m in answers] == [f"c{i}" for i in range(8)]
    assert most == 3 and log[3:5] == ["ridge.py", "pkg/a.py"]
    assert "return x" in answers[0]["content"] and "return 7" in answers[6]["content"]
    assert "A = 2" in answers[7]["content"]
    assert answers[4]["content"].startswith("error: unknown tool")
    assert [e.name for e in episode.events][3:6] == ["edit_line", "fly", "edit_line"]


def test_calls_after_finish_and_beyond_the_cap_are_answered(box: FolderBox) -> None:
    write = ("write_file", {"path": "late", "content": "x"})
    episode, _ = play(box, call(READ, ("finish", {}), write, READ))
    assert episode.status == "submitted" and not (box.root / "late").exists()
    assert [e.error for e in episode.events] == [None, None, "not_executed", "not_executed"]
    assert len([m for m in episode.messages if m["role"] == "tool"]) == 4
    episode, _ = play(box, call(*[READ] * 4), say("end"), settings=limits(calls_per_turn=2))
    assert [e.error for e in episode.events] == [None, None, "too_many_calls", "too_many_calls"]


def test_calls_without_ids_get_one(box: FolderBox) -> None:
    step = call(READ, READ)
    for raw in step["message"]["tool_calls"]:
        raw["id"] = None
    _, script = play(box, step, say("end"))
    assistant, *answers = script.requests[1]["messages"][2:]
    given = [c["id"] for c in assistant["tool_calls"]]
    assert given == [m["tool_call_id"] for m in answers] == ["call_1_0", "call_1_1"]


def test_limits(box: FolderBox) -> None:
    episode, _ = play(box, call(READ), settings=limits(turns=3))
    assert (episode.status, episode.effort.turns, episode.error) == ("limit", 3, "3 turns")
    episode, script = play(box, call(READ, prompt=10, sampled=4), settings=limits(sampled_tokens=10, turn_tokens=6))
    assert episode.status == "limit" and episode.effort.turns == 3
    assert [r["max_tokens"] for r in script.requests] == [6, 6, 2]
    steps = [call(READ, prompt=p, sampled=5) for p in (10, 20, 30)]
    episode, script = play(box, *steps, settings=limits(context_tokens=32))
    assert episode.status == "limit" and episode.effort.turns == 3 and script.requests[2]["max_tokens"] == 7
    episode, _ = play(box, call(READ), OVERFLOW)
    assert episode.status == "limit" and "too long" in episode.error and episode.effort.turns == 1


def test_wall_limit_in_a_reply_and_in_a_tool(box: FolderBox) -> None:
    async def never(_: Any) -> Response:
        await asyncio.sleep(3)
        return Response()

    episode, _ = play(box, never, settings=limits(wall_seconds=0.2))
    assert episode.status == "timeout" and episode.effort.turns == 0
    sleep = ("run_command", {"command": "sleep 9"})
    episode, _ = play(box, call(sleep, sleep), settings=limits(wall_seconds=1.5))
    assert episode.status == "timeout"
    assert [e.error for e in episode.events] == ["timeout", "not_executed"]


def test_endpoint_failures(box: FolderBox) -> None:
    down, garbage = Response("busy", 503), Response("<html>")
    episode, script = play(box, down, garbage, say("ok"))
    assert episode.status == "submitted" and len(script.requests) == 3
    with pytest.raises(EndpointLost, match="503"):
        play(box, down)
    with pytest.raises(EndpointLost, match="not a chat completion"):
        play(box, garbage)
    denied = Script([Response("no such key", 401)])
    with pytest.raises(EndpointLost, match="401"):
        play(box, denied.steps[0])


def test_sandbox_errors_get_out_and_nothing_else_does(box: FolderBox) -> None:
    async def dead(path: str, **kwargs: Any) -> bytes:
        raise SandboxError("box gone")

    hostile = ["kill -9 $$", "printf '\\000\\377\\033[2J'", "exit 300", "cd /; rm -f x", "exec 1>&- 2>&-; trap - EXIT"]
    episode, script = play(box, *[call(("run_command", {"command": c})) for c in hostile], say("end"))
    assert episode.status == "submitted" and all(e.error is None for e in episode.events)
    json.dumps(script.requests, ensure_ascii=False).encode()
    box.read = dead  # type: ignore[method-assign]
    with pytest.raises(SandboxError, match="box gone"):
        play(box, call(READ, READ))


def test_self_summary(box: FolderBox) -> None:
    settings = SETTINGS.model_copy(update={"summary": SummarySettings(trigger_tokens=50, max_tokens=99)})
    todo = ("todo_write", {"todos": [{"id": "1", "content": "fix f", "status": "in_progress"}]})
    episode, script = play(
        box,
        call(todo, prompt=10, sampled=5),
        call(READ, prompt=40, sampled=15),
        say("<think>long scratch</think>f returns x", prompt=70, sampled=20, thinking=8),
        call(READ, prompt=30, sampled=5),
        call(("finish", {}), prompt=45, sampled=4),
        settings=settings,
    )
    assert episode.status == "submitted" and episode.effort.summaries == 1 and episode.effort.turns == 4
    asked, continued = script.requests[2], script.requests[3]
    assert asked["messages"][:-1] == script.requests[1]["messages"] + asked["messages"][-3:-1]
    assert asked["messages"][-1] == {"role": "user", "content": REQUEST} and asked["max_tokens"] == 99
    assert asked["tools"] == script.requests[0]["tools"]
    assert [request.get("tool_choice") for request in script.requests] == [None, None, "none", None, None]
    assert episode.summary_replies == [2] and episode.effort.summary_tokens == 20
    system, user = continued["messages"]
    assert system == {"role": "system", "content": "sys"}
    assert user["content"] == (
        "do it\n\nSummaries so far: 1\nTo-do list:\n[>] fix f\n\nYour summary of the work so far:\nf returns x"
    )
    effort = episode.effort
    assert (effort.prompt_tokens, effort.sampled_tokens) == (10 + 30, 5 + 15 + 20 + 5 + 4)
    assert effort.tool_output_tokens == 25 + 15 + 10 and effort.thinking_tokens == 8
    assert (effort.tool_call_tokens, effort.final_message_tokens) == (5 + 15 + 5, (20 - 8) + 4), "none is free"
    assert len([m for m in episode.messages if m["role"] == "user"]) == 3


def test_summaries_are_bounded_and_survive_a_policy_that_writes_none(box: FolderBox) -> None:
    settings = SETTINGS.model_copy(update={"summary": SummarySettings(trigger_tokens=1, max_count=2)})
    settings = settings.model_copy(update={"limits": LimitSettings(turns=4)})
    episode, script = play(box, call(READ, prompt=5, sampled=1), settings=settings)
    assert episode.status == "limit" and episode.effort.summaries == 2 and episode.effort.invalid_calls == 2
    assert "(none was written)" in script.requests[2]["messages"][1]["content"]
    for message in episode.messages:
        if message["role"] == "assistant":
            index = episode.messages.index(message)
            assert episode.messages[index + 1]["role"] == "tool"
    assert summary_text("<think>never closed") == "" and summary_text("a<think>x</think>b") == "ab"


def test_observers_see_everything_and_may_take_over(box: FolderBox) -> None:
    seen: list[str] = []

    async def observer(moment: Moment) -> Any:
        seen.append(moment.kind)
        if moment.kind == "call" and moment.call and moment.call.name == "run_command":
            return ToolResult("a person did it")
        if moment.kind == "final" and seen.count("final") == 1:
            return "one more thing"
        if moment.kind == "turn" and seen.count("turn") == 1:
            return "by the way"
        return None

    script = [call(("run_command", {"command": "touch x"})), say("done"), call(READ), say("really done")]
    episode, server = play(box, *script, on_event=observer)
    assert episode.status == "submitted" and not (box.root / "x").exists()
    assert episode.events[0].result == "a person did it"
    assert server.requests[2]["messages"][-1] == {"role": "user", "content": "one more thing"}
    assert [message["role"] for message in server.requests[1]["messages"][-2:]] == ["tool", "user"]
    assert server.requests[1]["messages"][-1]["content"] == "by the way"
    acted, spoken = ["reply", "call", "result", "turn"], ["reply", "final"]
    assert seen == [*acted, *spoken, *acted, *spoken, "end"]
