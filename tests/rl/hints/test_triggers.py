"""Each trigger marks the right reply in episodes of the real harness, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.gateway.parts import TOKENIZERS
from woodshed.gateway.segments_wire import Finished
from woodshed.harness.loop import registry_for
from woodshed.harness.settings import LimitSettings, OutputSettings, SummarySettings
from woodshed.policy.formats import get_format
from woodshed.record.segment import Segment, Span
from woodshed.record.trajectory import ToolEvent, Trajectory
from woodshed.rl.hints import (
    TRIGGERS,
    Hint,
    Hinter,
    HintError,
    HintSettings,
    HintStats,
    SeenEpisode,
    load_trigger,
    renderer,
    usages,
)
from woodshed.rl.hints.replies import Place, Unplaced, places_of, replies_of
from woodshed.rollout.observed import last_reply_last, observe
from woodshed.rollout.program import ProgramExit
from woodshed.rollout.rewards.communication import final_message

from .episodes import HERMES, TASK, TASKS, Call, scripted

TOOLS = {"read_file": "read {path}", "finish": "submit"}
EDIT = {"path": "ridge.py", "old_string": "return x\n", "new_string": "return x + 1\n"}
BROKEN = {"path": "ridge.py", "old_string": "def f(x):", "new_string": "def f(x:"}


def found(trajectory: Trajectory) -> dict[str, list[int]]:
    """Trigger -> numbers of the replies that it marks."""
    seen = SeenEpisode(TASK, trajectory, replies_of(trajectory), TOOLS)
    hits = {name: [hint.reply for hint in trigger(seen)] for name, trigger in TRIGGERS.items()}
    return {name: numbers for name, numbers in hits.items() if numbers}


def texts(trajectory: Trajectory, name: str) -> list[str]:
    seen = SeenEpisode(TASK, trajectory, replies_of(trajectory), TOOLS)
    return [hint.text for hint in TRIGGERS[name](seen)]


def test_a_finish_with_open_items_or_a_long_message_is_marked() -> None:
    todos = HERMES.model_copy(update={"tools": (*HERMES.tools, "todo_write")})
    item = {"id": "1", "content": "fix", "status": "in_progress"}
    opened = [("todo_write", {"todos": [item]})]
    run = scripted(opened, [("finish", {"message": "It works. " * 130})], settings=todos)
    assert found(run) == {"open_todos": [1], "long_message": [1]}
    closed = [("todo_write", {"todos": [item | {"status": "completed"}]})]
    run = scripted(opened, closed, [("finish", {"message": "Fixed."})], settings=todos)
    assert found(run) == {}
    unfinished = scripted(opened, settings=todos.model_copy(update={"limits": LimitSettings(turns=2)}))
    assert unfinished.status == "limit" and "open_todos" not in found(unfinished), "it did not say that it was done"


def test_each_trigger_marks_the_reply_that_it_is_about() -> None:
    run = scripted(
        [("bash", {"command": "ls"})],
        [("read_file", {"file": "ridge.py"})],
        [("edit_file", EDIT)],
        [("edit_file", {**EDIT, "old_string": "return x + 1\n"})],
        [("edit_file", BROKEN)],
        [("edit_file", BROKEN)],
        [("edit_file", {"path": "tests/test_ridge.py", "old_string": "import f", "new_string": "import g"})],
        [("run_command", {"command": "exit 3"})],
        [("run_command", {"command": "exit 3"})],
        "All tests pass now.",
    )
    assert run.status == "submitted" and len(replies_of(run)) == 10
    assert found(run) == {
        "unknown_tool": [0],
        "invalid_arguments": [1],
        "unread_edit": [2, 6],
        "no_change": [3],
        "syntax_error": [4, 5],
        "repeated_failure": [5, 8],
        "edited_tests": [6],
        "untested_finish": [9],
    }
    assert texts(run, "unknown_tool") == ["There is no tool 'bash'. The tools are: read {path}; submit"]
    assert texts(run, "invalid_arguments") == ["Write such a call as: read {path}"]
    assert texts(run, "unread_edit")[0] == "Read ridge.py before you edit it."
    assert "was never closed" in texts(run, "syntax_error")[0]


def test_an_episode_without_faults_is_left_alone() -> None:
    run = scripted(
        [("read_file", {"path": "ridge.py"})],
        [("edit_file", EDIT)],
        [("run_command", {"command": "python -m pytest tests || true"})],
        "I changed f.",
    )
    assert run.status == "submitted" and found(run) == {}


def test_calls_of_one_reply_and_notices_about_replies_stay_apart() -> None:
    """Several calls in a reply, a reply that cannot be read, and one that has a sound call beside a broken one."""
    run = scripted(
        [("read_file", {"path": "ridge.py"}), ("bash", {}), ("grep", {})],
        "<tool_call>\nnonsense\n</tool_call>",
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "ridge.py"}}\n</tool_call>\n<tool_call>\n{"na',
        [("nosuch", {})],
        [("finish", {"message": "done"})],
    )
    replies = replies_of(run)
    assert [len(reply.events) for reply in replies] == [3, 1, 2, 1, 1]
    assert [run.events[i].error for i in replies[2].events] == [None, "malformed_call"]
    hits = found(run)
    assert hits["unknown_tool"] == [0, 0, 3] and hits["invalid_arguments"] == [1, 2]
    assert texts(run, "invalid_arguments")[0].startswith(
        "Write a call that can be read; this one fails: malformed call: "
    )
    stats = HintStats()
    Hinter(HintSettings(), TASKS).mark(run, stats)
    assert stats.found["unknown_tool"] == 2, "a trigger counts once per reply"


def test_replies_are_found_in_the_segment_that_sampled_them() -> None:
    """The context is summarised twice; mistakes before and after it, and in a summary, keep their place."""
    settings = HERMES.model_copy(update={"summary": SummarySettings(trigger_tokens=3000, max_tokens=200, max_count=2)})
    script: list[str | Sequence[Call]] = [
        [("bash", {"command": "one"})],
        [("run_command", {"command": "seq 1 300"})],
        [("read_file", {"path": "ridge.py"})],
        "a summary",
        [("bash", {"command": "two"})],
        [("run_command", {"command": "seq 1 300"})],
        [("read_file", {"path": "ridge.py"})],
        [("bash", {"command": "within the summary"})],
        [("bash", {"command": "three"})],
        [("finish", {"message": "done"})],
    ]
    run = scripted(*script, settings=settings)
    assert run.status == "submitted" and len(run.segments) == 3
    replies, places = replies_of(run), places_of(run)
    assert len(replies) == len(places) == len(script)
    assert [place.segment for place in places] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    tokenizer = TOKENIZERS["hermes"]
    for reply, place in zip(replies, places):
        tokens = run.segments[place.segment].tokens[place.start : place.end].tolist()
        text = tokenizer.decode(tokens)
        for one in reply.message.get("tool_calls") or ():
            assert one["function"]["arguments"] in text
        assert text.endswith("<|im_end|>") and run.segments[place.segment].sampled[place.start : place.end].all()
        head = run.segments[place.segment].tokens[place.begin : place.start].tolist()
        assert tokenizer.decode(head).endswith("<|im_start|>assistant\n")
    assert found(run)["unknown_tool"] == [0, 4, 8], "what a summary calls is not run, so it is no unknown tool"


def test_what_does_not_fit_is_counted_and_nothing_is_guessed() -> None:
    run = scripted([("bash", {})], [("finish", {"message": "x"})])
    lost = (
        replace(run, events=[*run.events, ToolEvent(9, "bash", None, "")]),
        replace(run, events=run.events[::-1]),
        replace(run, segments=run.segments * 3),
        replace(run, segments=[]),
    )
    stats = HintStats()
    hinter = Hinter(HintSettings(weight=1.0), TASKS, render=lambda text: [1], max_positions=10_000)
    for damaged in lost:
        assert not any(hinter.mark(damaged, stats))
    assert (stats.episodes, stats.unplaced, stats.messages) == (4, 4, 0)
    # the box died before the last reply's calls had results
    assert [len(r.events) for r in replies_of(replace(run, events=run.events[:1]))] == [1, 0]


def _segment(run: Trajectory, **changed: Any) -> Trajectory:
    return replace(run, segments=[replace(run.segments[0], **changed), *run.segments[1:]])


def _sampled(run: Trajectory, at: int, value: bool) -> Trajectory:
    sampled = run.segments[0].sampled.copy()
    sampled[at] = value
    return _segment(run, sampled=sampled)


def _spoken(run: Trajectory, place: Place, role: str) -> Trajectory:
    spans = [replace(s, role=role) if s.start == place.begin else s for s in run.segments[0].spans]
    return _segment(run, spans=tuple(spans))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run, place: _sampled(run, place.start + 1, False), "are no message of the policy"),
        (lambda run, place: _sampled(run, 0, True), "are no message of the policy"),
        (lambda run, place: _spoken(run, place, "user"), "are no message of the policy"),
        (lambda run, place: replace(run, messages=run.messages[:3]), "3 messages were sampled, and .* has 1 replies"),
        (lambda run, place: replace(run, segments=[]), "0 messages were sampled, and the conversation has 3 replies"),
    ],
)
def test_samples_that_are_not_the_replies_have_no_places(
    damage: Callable[[Trajectory, Place], Trajectory], message: str
) -> None:
    run = scripted(*([("bash", {"command": f"echo {n}"})] for n in range(2)), [("finish", {"message": "x"})])
    places = places_of(run)
    assert len(places) == 3 and len(run.segments) == 1
    assert len(places_of(replace(run, messages=run.messages[:-2]))) == 2, "one more may have been sampled at the end"
    with pytest.raises(Unplaced, match=message):
        places_of(damage(run, places[1]))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (lambda events: [*events, ToolEvent(9, "bash", None, "")], "1 events belong to no reply"),
        (lambda events: events[::-1], r"reply 0 calls \['bash'\], and the events are of \['finish'\]"),
    ],
)
def test_events_that_are_not_those_of_the_calls_belong_to_no_reply(
    events: Callable[[list[ToolEvent]], list[ToolEvent]], message: str
) -> None:
    run = scripted([("bash", {})], [("finish", {"message": "x"})])
    with pytest.raises(Unplaced, match=message):
        replies_of(replace(run, events=events(run.events)))


def test_how_calls_are_written() -> None:
    schemas = registry_for(HERMES).schemas()
    assert (
        usages(get_format("hermes"), schemas)["edit_file"] == "edit_file(path, old_string, new_string, [replace_all])"
    )
    tiny = HERMES.model_copy(update={"tools": ("read_file", "edit_line", "finish")})
    written = usages(get_format("compact"), registry_for(tiny).schemas())
    assert written["edit_line"] == "edit {path}\n{line}{text}" and set(written) == {"read_file", "edit_line", "finish"}


def test_a_verb_that_does_not_exist_is_no_invalid_argument() -> None:
    """The compact format answers it twice: as a call of an unknown tool, and as one that it cannot read."""
    settings = HERMES.model_copy(update={"tools": ("read_file", "finish"), "output": OutputSettings(separator="")})
    run = scripted("nosuch ridge.py", "read", "submit", settings=settings, format="compact")
    errors = [run.events[i].error for i in replies_of(run)[0].events]
    assert errors == ["unknown_tool", "malformed_call"]
    hits = found(run)
    assert hits["unknown_tool"] == [0] and hits["invalid_arguments"] == [1]


def own_trigger(seen: SeenEpisode) -> list[Hint]:
    return [Hint(reply.number, "be brief") for reply in seen.replies[1:]]


def failing_trigger(seen: SeenEpisode) -> list[Hint]:
    raise KeyError("nothing")


def wrong_trigger(seen: SeenEpisode) -> list[Hint]:
    return [Hint(99, "nobody")]


def half_trigger(seen: SeenEpisode) -> list[Hint]:
    return [Hint(len(seen.replies) / 2, "no number of a reply")]  # type: ignore[arg-type]


def test_a_trigger_of_ones_own() -> None:
    run = scripted([("bash", {})], [("finish", {"message": "x"})])
    stats = HintStats()
    settings = HintSettings(triggers=(f"{__name__}:own_trigger", "unknown_tool"))
    Hinter(settings, TASKS).mark(run, stats)
    assert stats.found == {f"{__name__}:own_trigger": 1, "unknown_tool": 1}
    nobody = "no hint for one of 2 replies"
    for name, said in (
        ("failing_trigger", "KeyError: 'nothing'"),
        ("wrong_trigger", nobody),
        ("half_trigger", nobody),
    ):
        with pytest.raises(HintError, match=f"{name}: .*{said}"):
            Hinter(HintSettings(triggers=(f"{__name__}:{name}",)), TASKS).mark(run, HintStats())
    for name, said in (
        ("unknown_tol", "did you mean 'unknown_tool'"),
        (f"{__name__}:nosuch", "cannot be loaded"),
        (f"{__name__}:EDIT", "no function"),
        ("json:dump", "SeenEpisode alone"),
    ):
        with pytest.raises(ValueError, match=said):
            load_trigger(name)
    with pytest.raises(ValueError, match="twice"):
        HintSettings(triggers=("no_change", "no_change"))


def test_episodes_of_other_programs_have_places_too() -> None:
    """Conversations as the gateway recorded them: a main one, and one of a sub-agent that begins alike."""
    run = scripted(
        [("bash", {"command": "one"})], [("read_file", {"path": "ridge.py"})], [("finish", {"message": "x"})]
    )
    (segment,) = run.segments
    branch = segment_of_branch(segment, places_of(run)[0].end)
    conversation = run.messages
    finished = Finished("t", [segment, branch], messages=[conversation, [*conversation[:2], *conversation[5:]]])
    seen = observe(finished, ProgramExit(0, False, False, 1.0, ""), LimitSettings())
    other = replace(run, segments=finished.segments, messages=seen.messages, events=seen.events)
    assert [[other.events[i].name for i in reply.events] for reply in replies_of(other)] == [
        ["bash"],
        ["read_file"],
        ["finish"],
        ["finish"],
    ]
    assert [place.segment for place in places_of(other)] == [0, 0, 0, 1]


def test_equal_answers_to_one_prompt_keep_their_places() -> None:
    """A program that asks twice, or for ``n`` answers, and gets the same one, then begins another conversation."""
    run = scripted([("bash", {"x": 1})], [("finish", {"message": "y"})])
    other = scripted([("finish", {"message": "z"})])
    (segment,), end = run.segments, places_of(run)[0].end
    again = replace(
        segment,
        tokens=segment.tokens[:end],
        sampled=segment.sampled[:end],
        logprobs=segment.logprobs[:end],
        versions=segment.versions[:end],
        spans=[span for span in segment.spans if span.end <= end],
    )
    conversations = [run.messages, run.messages[:2], other.messages]
    finished = Finished("t", [segment, again, *other.segments], messages=conversations)
    seen = observe(finished, ProgramExit(0, False, False, 1.0, ""), LimitSettings())
    whole = replace(run, segments=finished.segments, messages=seen.messages, events=seen.events)
    replies, places = replies_of(whole), places_of(whole)
    assert [place.segment for place in places] == [0, 0, 1, 2]
    for reply, place in zip(replies, places, strict=True):
        (made,) = reply.message["tool_calls"]
        tokens = finished.segments[place.segment].tokens[place.start : place.end].tolist()
        assert made["function"]["arguments"] in TOKENIZERS["hermes"].decode(tokens)


def test_the_last_message_is_what_was_said_last() -> None:
    """A program asks for a title beside its work. Conversations that share a reply keep their order."""
    run = scripted([("bash", {"x": 1})], [("finish", {"message": "y"})])
    (segment,), title = run.segments, scripted([("finish", {"message": "a title"})])
    counts = {"prompt_tokens": 9, "sampled_tokens": 9, "thinking_tokens": 0, "calls": 1}
    usage = [{**counts, "segment": n} for n in (0, 1, 0)]
    finished = Finished("t", [segment, *title.segments], usage=usage, messages=[run.messages, title.messages])
    ordered = last_reply_last(finished)
    assert ordered.messages == [title.messages, run.messages] and ordered.segments[1] is segment
    assert [turn["segment"] for turn in ordered.usage] == [1, 0, 1]
    seen = observe(ordered, ProgramExit(0, False, False, 1.0, ""), LimitSettings())
    whole = replace(run, segments=ordered.segments, messages=seen.messages, events=seen.events)
    assert "a title" not in final_message(whole)
    assert [place.segment for place in places_of(whole)] == [0, 1, 1]
    branch = replace(finished, messages=[run.messages, [*run.messages[:3], *title.messages[1:]]])
    assert last_reply_last(branch) is branch


def segment_of_branch(segment: Segment, known: int) -> Segment:
    """The last message of a segment after the first ``known`` tokens of it, which are context now."""
    last = segment.spans[-1]
    tokens = np.concatenate((segment.tokens[:known], segment.tokens[last.start :]))
    sampled = np.concatenate((np.zeros(known, np.bool_), segment.sampled[last.start :]))
    spans = [span for span in segment.spans if span.end <= known]
    spans.append(Span(known, len(tokens), "assistant", last.message))
    logprobs = np.where(sampled, -1.0, 0.0).astype(np.float32)
    return Segment(tokens, sampled, logprobs, np.where(sampled, 0, -1).astype(np.int32), spans)


def test_nothing_that_a_policy_writes_ends_a_run() -> None:
    """Names and paths with control tokens and half a surrogate pair, arguments nested deeper than the stack."""
    run = scripted([("bash", {})], [("read_file", {})], [("finish", {"message": "x"})])
    name = "<|im_end|>\ud800\x00" * 20
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"x": deep}
    odd = [
        replace(run.events[0], name=name),
        replace(run.events[1], arguments={"path": [name], "command": 3}, raw=None, result="error: " + name),
        run.events[2],
    ]
    messages = [dict(message) for message in run.messages]
    first = next(message for message in messages if message["role"] == "assistant")
    first["tool_calls"] = [{"function": {"name": name, "arguments": "{}"}}]
    hostile = replace(run, events=odd, messages=messages)
    render = renderer(get_format("hermes"), TOKENIZERS["hermes"], "user")
    hinter = Hinter(HintSettings(weight=1.0), TASKS, render=render, max_positions=10_000)
    stats = HintStats()
    (marked,) = hinter.mark(hostile, stats)
    assert [len(marked), stats.found["unknown_tool"], stats.found["invalid_arguments"]] == [2, 1, 1]
    control = TOKENIZERS["hermes"].special_id("<|im_end|>")
    for number, message in enumerate(marked):
        before = run.segments[0].tokens[: places_of(run)[number].start]
        added = int((message.context == control).sum()) - int((before == control).sum())
        assert added == 1, "the hint ends its own message and no other"
    deeper = replace(hostile, events=[odd[0], replace(odd[1], arguments=deep), odd[2]])
    (marked,) = hinter.mark(deeper, stats)
    assert len(marked) == 2 and stats.unplaced == 0, "the trigger that cannot read it finds nothing, the others do"
