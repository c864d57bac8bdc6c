"""A server that speaks chat completions alone and answers as the conversation tells it: `python scripted_upstream.py`.

It stands for a model that calls tools well, which no starter does, and for an upstream of another make: the gateway
translates every other protocol to its one route. What it understands, in the last user message that has such a line:

    CALL name {"argument": 1}     call this tool (the first of `a|b|c` that is offered)
    SAY text                      answer with this text

When the last message is a tool's result, the answer is that result. Otherwise it answers with a greeting. Knows nothing
of Tessera.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import Any

from aiohttp import web

MODEL = "scripted"
CALL = re.compile(r"CALL ([\w.|-]+) (\{.*?\})(?:\s*END|$)", re.DOTALL | re.MULTILINE)
SAY = re.compile(r"SAY (.+?)(?:\s*END|$)", re.DOTALL | re.MULTILINE)
GREETING = "Hello from the scripted model."


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def decide(body: dict[str, Any]) -> dict[str, Any]:
    """The message that answers a conversation."""
    messages = body["messages"]
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The tool said: {text_of(last['content'])[:500]}"}
    offered = [tool["function"]["name"] for tool in body.get("tools") or []]
    for asked in (text_of(message["content"]) for message in reversed(messages) if message["role"] == "user"):
        if told := CALL.findall(asked):
            names, arguments = told[-1]
            chosen = next((name for name in names.split("|") if name in offered), None)
            if chosen is not None:
                call = {"id": "call_1", "type": "function", "function": {"name": chosen, "arguments": arguments}}
                return {"role": "assistant", "content": None, "tool_calls": [call]}
        if said := SAY.findall(asked):
            return {"role": "assistant", "content": said[-1]}
    return {"role": "assistant", "content": GREETING}


def pieces(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The deltas of a streamed message."""
    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    text = message["content"] or ""
    found += [{"content": word} for word in re.findall(r"\S+\s*|\s+", text)]
    for index, call in enumerate(message.get("tool_calls", [])):
        head = {"index": index, "id": call["id"], "type": "function"}
        found.append({"tool_calls": [{**head, "function": {"name": call["function"]["name"], "arguments": ""}}]})
        arguments = call["function"]["arguments"]
        for at in range(0, len(arguments), 7):
            found.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + 7]}}]})
    return found


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, whole or streamed."""
    body = await request.json()
    message = decide(body)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    used = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    common = {"id": "chatcmpl-scripted", "created": int(time.time()), "model": MODEL}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return web.json_response({**common, "object": "chat.completion", "choices": [choice], "usage": used})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in pieces(message)]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({"choices": [], "usage": used})
    for event in events:
        line = json.dumps({**common, "object": "chat.completion.chunk", **event})
        await response.write(f"data: {line}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


async def models(_: web.Request) -> web.Response:
    """The one model."""
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "test"}]})


def main() -> None:
    """Serve on a port of the loopback interface."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--port", type=int, required=True)
    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
    web.run_app(app, host="127.0.0.1", port=arguments.parse_args().port, print=None)


if __name__ == "__main__":
    main()
