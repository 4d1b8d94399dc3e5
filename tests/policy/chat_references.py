"""Whole conversations in the published formats of three model families, rendered by plain code as references for ours.

Written from the formats as the models' cards and chat templates describe them, one string per conversation, nothing
shared with ``woodshed.policy.formats``. Calls have their arguments as objects. Where a published template has no form
for a message (calls with text, several calls in Llama 3), ours is written.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

QWEN_TAIL = """

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>"""  # noqa: E501


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    return compact_json(value) if isinstance(value, (dict, list)) else str(value)


def qwen3_coder(messages: list[Json], tools: list[Json], generate: bool) -> str:
    """Qwen3-Coder-30B-A3B-Instruct. Each turn ends with a newline; ``messages`` begin with a system message."""
    system, *rest = messages
    out = "<|im_start|>system\n" + system["content"]
    if tools:
        out += "\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
        for function in (tool["function"] for tool in tools):
            out += f"\n<function>\n<name>{function['name']}</name>"
            if "description" in function:
                out += f"\n<description>{function['description'].strip()}</description>"
            out += "\n<parameters>"
            for name, field in function["parameters"].get("properties", {}).items():
                out += f"\n<parameter>\n<name>{name}</name>"
                for key in ("type", "description"):
                    out += f"\n<{key}>{str(field[key]).strip()}</{key}>" if key in field else ""
                for key in field:
                    out += f"\n<{key}>{plain(field[key])}</{key}>" if key not in ("name", "type", "description") else ""
                out += "\n</parameter>"
            for key, value in function["parameters"].items():
                out += f"\n<{key}>{plain(value)}</{key}>" if key not in ("type", "properties") else ""
            out += "\n</parameters>\n</function>"
        out += "\n</tools>" + QWEN_TAIL
    out += "<|im_end|>\n"
    previous = ""
    for number, message in enumerate(rest):
        role, text = message["role"], message["content"]
        if role == "tool":
            out += "" if previous == "tool" else "<|im_start|>user\n"
            out += f"<tool_response>\n{text}\n</tool_response>\n"
            last = number + 1 == len(rest) or rest[number + 1]["role"] != "tool"
            out += "<|im_end|>\n" if last else ""
        elif message.get("tool_calls"):
            out += "<|im_start|>assistant"
            out += f"\n{text.strip()}\n" if text.strip() else ""
            for call in message["tool_calls"]:
                out += f"\n<tool_call>\n<function={call['function']['name']}>\n"
                for key, value in call["function"]["arguments"].items():
                    out += f"<parameter={key}>\n{plain(value)}\n</parameter>\n"
                out += "</function>\n</tool_call>"
            out += "<|im_end|>\n"
        else:
            out += f"<|im_start|>{role}\n{text}<|im_end|>\n"
        previous = role
    return out + ("<|im_start|>assistant\n" if generate else "")


def llama3(messages: list[Json], tools: list[Json], generate: bool) -> str:
    """Llama-3.1-8B-Instruct with ``tools_in_user_message=False`` and the default date."""
    system, *rest = messages
    out = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    out += "Environment: ipython\n" if tools else ""
    out += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    if tools:
        out += (
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call.Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            "value}.Do not use variables.\n\n"
        )
        for tool in tools:
            out += json.dumps(tool, indent=4, ensure_ascii=False) + "\n\n"
    out += system["content"].strip() + "<|eot_id|>"
    for message in rest:
        role, text = message["role"], message["content"].strip()
        out += f"<|start_header_id|>{'ipython' if role == 'tool' else role}<|end_header_id|>\n\n"
        if role == "tool":
            out += compact_json(message["content"])
        elif message.get("tool_calls"):
            functions = [call["function"] for call in message["tool_calls"]]
            out += text + ("<|python_tag|>" if text else "")
            out += "; ".join(
                '{"name": "' + f["name"] + '", "parameters": ' + compact_json(f["arguments"]) + "}" for f in functions
            )
        else:
            out += text
        out += "<|eot_id|>"
    return out + ("<|start_header_id|>assistant<|end_header_id|>\n\n" if generate else "")


def kimi_k2(messages: list[Json], tools: list[Json], generate: bool) -> str:
    """Kimi-K2-Instruct. Ids of calls are in its form."""
    out = ""
    if tools:
        listed = json.dumps(tools, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        out += f"<|im_system|>tool_declare<|im_middle|>{listed}<|im_end|>"
    if messages[0]["role"] != "system":
        out += "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"
    for message in messages:
        role, text = message["role"], message["content"]
        out += f"<|im_{role if role in ('user', 'assistant') else 'system'}|>{role}<|im_middle|>"
        if role == "tool":
            out += f"## Return of {message['tool_call_id']}\n"
        out += text
        if message.get("tool_calls"):
            out += "<|tool_calls_section_begin|>"
            for call in message["tool_calls"]:
                out += f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
                out += compact_json(call["function"]["arguments"]) + "<|tool_call_end|>"
            out += "<|tool_calls_section_end|>"
        out += "<|im_end|>"
    return out + ("<|im_assistant|>assistant<|im_middle|>" if generate else "")


REFERENCES = {"qwen3_coder": qwen3_coder, "llama3": llama3, "kimi_k2": kimi_k2}
