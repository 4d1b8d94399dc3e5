"""Demonstrations with summaries, played in the real harness and sandbox and rendered for SFT."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from gateway.parts import COMPACT

from woodshed.harness.episode import Episode
from woodshed.harness.loop import run_episode
from woodshed.harness.registry import ToolRegistry
from woodshed.harness.settings import HarnessSettings, LimitSettings, OutputSettings, SummarySettings
from woodshed.policy.formats import get_format
from woodshed.recipe.stages import DemonstrationSettings
from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.taskbox import agent_box_spec
from woodshed.stages.demonstrations import _counter, ends_tested
from woodshed.stages.demonstrator import fix_of, line_script
from woodshed.stages.render import render_conversation
from woodshed.stages.scripted import ScriptedEndpoint, contexts, scripted_summary
from woodshed.tasks.generators.synthetic.spec import draw_synthetic
from woodshed.tasks.generators.synthetic.write import write_synthetic

CHAT = get_format("compact")
WRONG_FIRST = DemonstrationSettings(
    right_edit=0.3, broken_edit=0, untested_finish=0, give_up=0, invalid_call=0, wrong_file=0, undo=1
)
REQUEST = "summary"


def harness(trigger: int) -> HarnessSettings:
    return HarnessSettings(
        tools=("read_file", "edit_line", "undo", "run_tests", "finish"),
        system_prompt="",
        plain_message_ends=False,
        limits=LimitSettings(turns=40),
        output=OutputSettings(separator="", snippet=False, error_detail=False),
        summary=SummarySettings(trigger_tokens=trigger, request=REQUEST, max_tokens=200),
    )


@pytest.fixture(scope="module")
def synthetic_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    (spec,) = draw_synthetic(1, split="sft", seed=5, workers=1)
    return write_synthetic(spec, tmp_path_factory.mktemp("synthetic") / "t")


def play(
    task: Task, settings: HarnessSettings, folder: Path, seeds: range, *, plans: bool = False
) -> list[tuple[Episode, list[float]]]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")

    async def main() -> list[tuple[Episode, list[float]]]:
        backend, layers = open_backend(), LayerStore(folder)
        done = []
        try:
            for seed in seeds:
                box = await backend.create(agent_box_spec(task, layers))
                script = line_script(task, random.Random(seed), WRONG_FIRST)
                count = _counter(CHAT, COMPACT)
                endpoint = ScriptedEndpoint(script, request=REQUEST, count=count, plans=lambda: plans)
                episode = await run_episode(
                    task.instruction, box, endpoint, settings, test_command=task.info.test_command
                )
                await box.close()
                done.append((episode, endpoint.weights))
        finally:
            await backend.close()
        return done

    return asyncio.run(main())


def test_demonstrations_go_on_from_their_summaries(synthetic_task: Task, tmp_path: Path) -> None:
    fix = fix_of(synthetic_task)
    whole = play(synthetic_task, harness(0), tmp_path / "a", range(6))
    longest = max(e.effort.prompt_tokens + e.effort.sampled_tokens + e.effort.tool_output_tokens for e, _ in whole)
    settings = harness(longest // 3)
    played = play(synthetic_task, settings, tmp_path / "b", range(6))
    assert sum(e.effort.summaries for e, _ in played) >= 6 and max(e.effort.summaries for e, _ in played) >= 2
    tools = ToolRegistry(settings.tools, settings).schemas()
    for (plain, _), (episode, weights) in zip(whole, played):
        assert plain.status == episode.status == "submitted"
        # the same edits and tests, in the same order; only reads are repeated
        edits = [[(e.name, e.arguments, e.result) for e in x.events if e.name != "read_file"] for x in (plain, episode)]
        assert edits[0] == edits[1]
        assert ends_tested(episode.messages) == ends_tested(plain.messages)
        parts = contexts(episode.messages, weights, REQUEST)
        assert len(parts) == episode.effort.summaries + 1
        assert sum(len(messages) for messages, _ in parts) == len(episode.messages)
        for number, (messages, own) in enumerate(parts):
            assert len(own) == sum(m["role"] == "assistant" for m in messages)
            tokens, weighed = render_conversation(messages, tools, CHAT, COMPACT, own)
            trained = COMPACT.decode(tokens[weighed > 0].tolist())
            if number < len(parts) - 1:
                assert messages[-2]["content"] == REQUEST and messages[-1]["content"] in trained
                assert messages[-1]["content"] in parts[number + 1][0][0]["content"]
            if number:
                assert messages[0]["content"].startswith(synthetic_task.instruction)
                assert f"Summaries so far: {number}" in messages[0]["content"] not in trained
    last = max(played, key=lambda pair: pair[0].effort.summaries)[0]
    final = contexts(last.messages, [1.0] * len(last.messages), REQUEST)[-1][0][0]["content"]
    assert f"file {fix.path}" in final and "tests " in final


def test_a_summary_with_the_next_edit_spares_reading_the_file_again(synthetic_task: Task, tmp_path: Path) -> None:
    read = harness(0).model_copy(update={"summary": SummarySettings(trigger_tokens=60, request=REQUEST, max_count=1)})
    plain, planned = (play(synthetic_task, read, tmp_path, range(6), plans=plans) for plans in (False, True))
    for (short, _), (long, weights) in zip(plain, planned):
        edit = next(e for e in long.events if e.name == "edit_line")
        first, second = contexts(long.messages, weights, REQUEST)
        plan = f"\nnext edit {edit.arguments['path']}\n{edit.arguments['line']}{edit.arguments['text']}"
        assert first[0][-1]["content"].endswith(plan) and plan in second[0][0]["content"]
        assert first[1][-1] == second[1][0] in (0.0, 1.0), "a wrong plan is learned as little as the wrong edit"
        assert [e.name for e in short.events[:3]] == ["run_tests", "read_file", "read_file"]
        for got, want in zip(long.events, [e for n, e in enumerate(short.events) if n != 2], strict=True):
            assert (got.name, got.arguments, got.result) == (want.name, want.arguments, want.result)


def message(name: str, **arguments: Any) -> list[dict[str, Any]]:
    result = arguments.pop("result")
    function = {"name": name, "arguments": json.dumps(arguments)}
    key = f"{name}{result}{arguments}"
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": key, "type": "function", "function": function}]}
    return [call, {"role": "tool", "tool_call_id": key, "content": result}]


def test_a_summary_says_file_tries_and_tests() -> None:
    first = [
        {"role": "user", "content": "fix: ridge"},
        *message("run_tests", result="FAIL ridge"),
        *message("read_file", path="ridge.py", result="def f()"),
        *message("read_file", path="gone.py", result="error: no such file"),
        *message("edit_line", path="ridge.py", line=2, text="    return x", result="ok"),
        *message("run_tests", result="FAIL 3"),
        *message("undo", result="ok"),
        *message("edit_line", path="ridge.py", line=3, text="return (", result="error: syntax"),
    ]
    summary = "file ridge.py\ntried line 2: return x fail\nundone\ntried line 3: return ( rejected\ntests fail"
    assert scripted_summary(first) == summary
    second = [
        {
            "role": "user",
            "content": f"fix: ridge\n\nSummaries so far: 1\n\nYour summary of the work so far:\n{summary}",
        },
        *message("read_file", path="ridge.py", result="def f()"),
        *message("edit_file", path="ridge.py", old_string="a", new_string="b\n  c", result="ok"),
        *message("run_tests", result="PASS 3"),
    ]
    kept = "file ridge.py\ntried line 2: return x fail\nundone\ntried line 3: return ( rejected\ntried b c pass\n"
    assert scripted_summary(second) == f"{kept}tests pass"
    assert scripted_summary(first[:1]) == "tests not run"
    assert scripted_summary(second[:1]) == summary, "nothing happened since"
    second[0]["content"] += "\nnext edit ridge.py\n3    return 0"
    assert scripted_summary(second) == f"{kept}tests pass", "an earlier plan is not kept"
