#!/usr/bin/env python3
"""A whole coding agent: one tool, standard library only. It knows nothing of who serves the model."""

import json
import os
import subprocess
import sys
import urllib.request

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"type": "function", "function": {"name": "bash", "description": "Run it.", "parameters": PARAMETERS}}


def ask(messages: list) -> dict:
    body = {"model": os.environ["WOODSHED_MODEL"], "messages": messages, "tools": [BASH], "temperature": 0.2, "seed": 1}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]


def work(task: str) -> None:
    messages = [{"role": "user", "content": task}]
    while True:
        messages.append(ask(messages))
        calls = messages[-1].get("tool_calls")
        if not calls:
            return
        for call in calls:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})


if __name__ == "__main__":
    with open(os.environ["WOODSHED_TASK_FILE"]) as file:
        instruction = file.read()
    for again in range(int([*sys.argv, "1"][1])):
        work(instruction + " now" * again)
