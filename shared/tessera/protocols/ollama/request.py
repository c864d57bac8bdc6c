"""Requests of Ollama's chat and generate as chat requests. What cannot be done here is refused by its name. Does not
know answers.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import ImagePart, ImageURL, Message, Part, TextPart
from tessera.wire.hints import StreamOptions
from tessera.wire.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaOptions,
    OllamaTool,
    OllamaTurn,
)
from tessera.wire.tools import (
    CalledFunction,
    Function,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
    Tool,
    ToolCall,
)

_IMAGES = ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"), (b"BM", "bmp"))
"""First bytes of image files."""


def chat_of_chat(request: OllamaChatRequest) -> ChatCompletionRequest:
    """The chat request for `/api/chat`.

    Raises:
        InvalidRequestError: a part of it cannot be read here; names it.
    """
    return _generation(request, _Turns().messages(request.messages or []), _tools(request.tools or []))


def chat_of_generate(request: OllamaGenerateRequest) -> ChatCompletionRequest:
    """The chat request for `/api/generate`; with `raw` or a suffix, its only message is the prompt as it is.

    Raises:
        InvalidRequestError: a part of it cannot be done here; names it.
    """
    if request.template:
        raise InvalidRequestError(
            "`template`: the model's own template is used; leave it out, or send the whole prompt with `raw`",
            param="template",
        )
    if request.context:
        raise InvalidRequestError(
            "`context`: conversations are not kept as tokens; send their messages to /api/chat", param="context"
        )
    prompt = request.prompt or ""
    if is_plain(request):
        if request.images or request.system:
            name = "images" if request.images else "system"
            raise InvalidRequestError(f"`{name}` needs the model's template; leave out `raw` and `suffix`", param=name)
        return _generation(request, [Message(role="user", content=prompt)], [])
    turns = [OllamaTurn(role="system", content=request.system)] if request.system else []
    turns.append(OllamaTurn(role="user", content=prompt, images=request.images))
    return _generation(request, _Turns("images").messages(turns), [])


def is_plain(request: OllamaGenerateRequest) -> bool:
    """Whether the prompt is continued as it is, without a template."""
    return bool(request.raw or request.suffix)


class _Turns:
    """Turns as chat messages. Ollama's calls need no ids, so results find their calls by name, or in their order.

    Args:
        images_at: the field of the images in errors; that of the message when it is empty.
    """

    def __init__(self, images_at: str = "") -> None:
        self._images_at = images_at
        self._waiting: list[tuple[str, str]] = []
        self._made = 0

    def messages(self, turns: list[OllamaTurn]) -> list[Message]:
        return [self._message(turn, f"messages[{place}]") for place, turn in enumerate(turns)]

    def _message(self, turn: OllamaTurn, at: str) -> Message:
        if turn.role == "tool":
            return Message(role="tool", content=turn.content or "", tool_call_id=self._answered(turn, at))
        calls = []
        for call in turn.tool_calls or []:
            identity = call.id or self._new_id()
            self._waiting.append((identity, call.function.name))
            arguments = msgspec.json.encode(call.function.arguments).decode()
            function = CalledFunction(name=call.function.name, arguments=arguments)
            calls.append(ToolCall(id=identity, type="function", function=function))
        text = turn.content or ""
        content: str | list[Part] | None = None if calls and not text else text
        if turn.images:
            where = self._images_at or f"{at}.images"
            images = [_image(data, f"{where}[{place}]") for place, data in enumerate(turn.images)]
            content = [*images, TextPart(text)] if text else [*images]
        return Message(
            role=turn.role, content=content, tool_calls=calls or None, reasoning_content=turn.thinking or None
        )

    def _answered(self, turn: OllamaTurn, at: str) -> str:
        """The id of the call whose result a turn is."""
        for place, (identity, name) in enumerate(self._waiting):
            wanted = turn.tool_call_id in (None, identity) and turn.tool_name in (None, name)
            if wanted:
                del self._waiting[place]
                return identity
        raise InvalidRequestError(f"`{at}` is the result of a tool that was not called before", param=at)

    def _new_id(self) -> str:
        """An id of nine digits: the only length that Mistral's templates accept."""
        self._made += 1
        return f"{self._made:09d}"


def _generation(request: OllamaGeneration, messages: list[Message], tools: list[Tool]) -> ChatCompletionRequest:
    options = request.options or OllamaOptions()
    given: dict[str, Any] = {
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "repetition_penalty": options.repeat_penalty,
        "min_p": options.min_p,
        "typical_p": options.typical_p or None,
    }
    return ChatCompletionRequest(
        model=request.model,
        messages=messages,
        tools=tools or None,
        # Ollama's durations are measured at the first token and the last, so the upstream always streams.
        stream=True,
        stream_options=StreamOptions(include_usage=True),
        max_tokens=options.num_predict if (options.num_predict or 0) > 0 else None,
        # Nothing but the likeliest token is left of a share of 0.
        temperature=0.0 if options.top_p == 0 else options.temperature,
        top_p=options.top_p or None,
        top_k=max(options.top_k, 0) if options.top_k is not None else None,
        seed=options.seed,
        stop=options.stop or None,
        response_format=_format(request),
        reasoning_effort=_effort(request),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs if request.logprobs else None,
        **{name: value for name, value in given.items() if value is not None},
    )


def _effort(request: OllamaGeneration) -> Any:
    if request.think is None or isinstance(request.think, str):
        return request.think
    return "medium" if request.think else "none"


def _format(request: OllamaGeneration) -> ResponseFormat | None:
    if not request.format:
        return None
    if isinstance(request.format, str):
        return JsonObjectFormat()
    return JsonSchemaFormat(json_schema=JsonSchema(name="answer", schema=request.format))


def _tools(given: list[OllamaTool]) -> list[Tool]:
    return [
        Tool(
            function=Function(
                name=tool.function.name,
                description=tool.function.description,
                parameters=tool.function.parameters,
            )
        )
        for tool in given
    ]


def _image(data: str, param: str) -> ImagePart:
    try:
        head = base64.b64decode(data[:16] + "=" * (-len(data[:16]) % 4))
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(f"`{param}` is not base64: {error}", param=param) from error
    kind = next((kind for mark, kind in _IMAGES if head.startswith(mark)), "png")
    return ImagePart(ImageURL(f"data:image/{kind};base64,{data}"))
