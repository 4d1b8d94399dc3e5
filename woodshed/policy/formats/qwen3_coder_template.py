"""Tool list of ``qwen3_coder``'s system turn (schemas as nested tags, then how to call), and its Jinja chat template.

The template is for programs that open a saved policy (transformers, vLLM).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Tool, schema_of

CALLING = (
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, "
    "but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n</IMPORTANT>"
)
"""Instruction that the published models were trained with."""


def tool_list(tools: Sequence[Tool]) -> str:
    """Render all schemas. Keys other than name, type and description follow as tags of their own."""
    shown = "".join(_function(schema_of(tool)["function"]) for tool in tools)
    return f"\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>{shown}\n</tools>"


def _function(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    fields = properties.items() if isinstance(properties, Mapping) else ()
    out = [f"\n<function>\n<name>{function['name']}</name>", _description(function), "\n<parameters>"]
    for name, field in fields:
        field = field if isinstance(field, Mapping) else {}
        out += [f"\n<parameter>\n<name>{name}</name>", f"\n<type>{field['type']}</type>" if "type" in field else ""]
        out += [_description(field), _rest(field, "name", "type", "description"), "\n</parameter>"]
    out += [_rest(schema, "type", "properties"), "\n</parameters>"]
    return "".join([*out, _rest(function, "type", "name", "description", "parameters"), "\n</function>"])


def _description(schema: Mapping[str, Any]) -> str:
    return f"\n<description>{str(schema['description']).strip()}</description>" if "description" in schema else ""


def _rest(schema: Mapping[str, Any], *handled: str) -> str:
    def value(v: Any) -> str:
        return json.dumps(v, ensure_ascii=False) if isinstance(v, (Mapping, list, tuple)) else str(v)

    return "".join(f"\n<{k}>{value(v)}</{k}>" for k, v in schema.items() if k not in handled)


TEMPLATE = (
    r"""
{%- macro show(value) %}
    {%- if value is string %}
        {{- value }}
    {%- elif value is mapping or value is sequence %}
        {{- value | tojson }}
    {%- else %}
        {{- value | string }}
    {%- endif %}
{%- endmacro %}
{%- macro rest(schema, handled) %}
    {%- for key, value in schema.items() if key not in handled %}
        {{- '\n<' ~ key ~ '>' ~ show(value) ~ '</' ~ key ~ '>' }}
    {%- endfor %}
{%- endmacro %}
{%- macro description(schema) %}
    {%- if 'description' in schema %}
        {{- '\n<description>' ~ (schema.description | trim) ~ '</description>' }}
    {%- endif %}
{%- endmacro %}
{%- macro function(tool) %}
    {%- set schema = tool.parameters or {} %}
    {{- '\n<function>\n<name>' ~ tool.name ~ '</name>' ~ description(tool) ~ '\n<parameters>' }}
    {%- for name, field in (schema.properties or {}).items() %}
        {{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}
        {%- if 'type' in field %}
            {{- '\n<type>' ~ field.type ~ '</type>' }}
        {%- endif %}
        {{- description(field) ~ rest(field, ['name', 'type', 'description']) ~ '\n</parameter>' }}
    {%- endfor %}
    {{- rest(schema, ['type', 'properties']) ~ '\n</parameters>' }}
    {{- rest(tool, ['type', 'name', 'description', 'parameters']) ~ '\n</function>' }}
{%- endmacro %}
{%- set ns = namespace(start=0) %}
{{- '<|im_start|>system\n' }}
{%- if messages and messages[0].role == 'system' %}
    {%- set ns.start = 1 %}
    {{- messages[0].content }}
{%- else %}
    {{- 'You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks.' }}
{%- endif %}
{%- if tools %}
    {{- '\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
    {%- for tool in tools %}
        {{- function(tool.function or tool) }}
    {%- endfor %}
    {{- '\n</tools>' }}
    {{- CALLING }}
{%- endif %}
{{- '<|im_end|>' }}
{%- for message in messages[ns.start:] %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '\n<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '\n<|im_end|>' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '\n<|im_start|>assistant\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {%- set content = (message.content or '') | trim if message.tool_calls else message.content or '' %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if not loop.first else '\n\n' if content else '' }}
            {%- set function_called = call.function or call %}
            {{- '<tool_call>\n<function=' + function_called.name + '>\n' }}
            {%- if function_called.arguments is mapping %}
                {%- for key, value in function_called.arguments.items() %}
                    {{- '<parameter=' + key + '>\n' ~ show(value) ~ '\n</parameter>\n' }}
                {%- endfor %}
            {%- elif function_called.arguments %}
                {{- function_called.arguments + '\n' }}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
    {%- else %}
        {{- '\n<|im_start|>' + ('user' if message.role == 'user' else 'system') + '\n' }}
        {{- message.content }}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\n<|im_start|>assistant\n' }}
{%- endif %}
"""
).replace("CALLING", repr(CALLING))
