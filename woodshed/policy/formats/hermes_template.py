"""The ``hermes`` format as a Jinja chat template, for programs that open a saved policy (transformers, vLLM)."""

TEMPLATE = r"""
{%- set ns = namespace(start=0) %}
{{- '<|im_start|>system\n' }}
{%- if messages and messages[0].role == 'system' %}
    {%- set ns.start = 1 %}
    {{- messages[0].content }}
{%- else %}
    {{- 'You are a helpful assistant.' }}
{%- endif %}
{%- if tools %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments" }}
    {{- " within <tool_call></tool_call> XML tags:\n<tool_call>\n" }}
    {{- "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}
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
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '\n<|im_start|>assistant\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}
                {{- '\n' }}
            {%- endif %}
            {%- set function = call.function if call.function else call %}
            {{- '<tool_call>\n{"name": ' }}
            {{- function.name | tojson }}
            {{- ', "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
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
