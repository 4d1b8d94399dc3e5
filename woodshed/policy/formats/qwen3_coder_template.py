"""The ``qwen3_coder`` format as a Jinja chat template, for programs that open a saved policy (transformers, vLLM)."""

from .qwen3_coder_tools import CALLING

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
