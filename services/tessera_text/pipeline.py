"""Makes prompts of conversations: the model's template, then tokens. Refuses images."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.engine.client import EngineClient
from tessera.engine.host import context_of, directory_of
from tessera.errors import ModelLoadError
from tessera.language.attachments.reading import AttachmentReader
from tessera.language.chat import ChatCompletions
from tessera.language.completions import Completions
from tessera.language.conversation import render_prompt, spoken, template_message, text_of
from tessera.language.embeddings import Embeddings
from tessera.language.generation import GenerationLimits, Generator, Prompt
from tessera.language.metrics import GenerationMetrics
from tessera.language.parsers.dialects import Dialect
from tessera.language.prompts.templates import Templates
from tessera.language.tokens import Tokenization
from tessera.settings.text import TextSettings
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.literals import Literals
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import Message
from tessera.wire.engine import Ready


@dataclass(frozen=True)
class TextTools:
    """The tools of one model that the text routes use.

    Attributes:
        chat: answers conversations.
        tokens: converts between text and token ids.
        completions: continues texts.
        embeddings: computes vectors.
        pinned: tokens of the beginnings of prompts that stay in the prefix cache.
    """

    chat: ChatCompletions
    tokens: Tokenization
    completions: Completions
    embeddings: Embeddings
    pinned: Sequence[list[int]]


def build_tools(
    ready: Ready,
    engine: EngineClient,
    metrics: GenerationMetrics,
    settings: TextSettings,
    attachments: AttachmentReader,
) -> TextTools:
    """Make the tools of the model that the engine has loaded."""
    card, directory = ready.cards[0], directory_of(ready)
    tokenizer = Tokenizer(directory)
    templates = Templates(
        directory, card.id, allowed=settings.request_chat_templates, setting="text.request_chat_templates"
    )
    template = templates.own
    limits = GenerationLimits(
        context_length=context_of(card),
        max_output_tokens=settings.max_output_tokens,
        max_choices=settings.max_choices,
        clamps=settings.max_tokens_policy == "clamp",
    )
    generator = Generator(engine, tokenizer, card.id, metrics)
    dialect = Dialect.of(
        template.source if template else "",
        tokenizer.control,
        takes_tools=template is not None and "tools" in template.variables,
    ).overridden(settings.tool_parser, settings.reasoning_parser)

    async def prompter(request: ChatCompletionRequest) -> Prompt:
        templates.check(request)
        request = await attachments.read(request)
        tokenizer.check_length(request.characters, limits.context_length, param="messages")
        literals = Literals(tokenizer)

        def rendered() -> str:
            own = templates.of(request)
            messages = [
                as_template_message(message, index, literals, own) for index, message in enumerate(request.messages)
            ]
            return render_prompt(own, dialect, request, messages, lambda text, _: literals.hide(text), as_content=str)

        text = rendered() if request.chat_template is None else await asyncio.to_thread(rendered)
        pieces = literals.pieces(text)
        ids = await tokenizer.encode_pieces(pieces, limits.context_length, param="messages")
        return Prompt(ids, {}, text)

    return TextTools(
        ChatCompletions(card.id, generator, prompter, limits, dialect),
        Tokenization(tokenizer, prompter, limits),
        Completions(card.id, generator, limits),
        Embeddings(card.id, engine, tokenizer, limits),
        [beginning(prompt, template, tokenizer) for prompt in settings.pinned_prompts],
    )


def beginning(system: str, template: ChatTemplate | None, tokenizer: Tokenizer) -> list[int]:
    """The tokens that every conversation with a system prompt begins with.

    Raises:
        ModelLoadError: the model has no chat template, and so no conversations.
    """
    if template is None:
        raise ModelLoadError("`pinned_prompts` are system prompts, but the model has no chat template")
    literals = Literals(tokenizer)
    encoded = []
    for word in ("one", "2"):
        messages = [{"role": "system", "content": literals.hide(system)}, {"role": "user", "content": word}]
        encoded.append(tokenizer.encode_pieces_now(literals.pieces(template.render(messages))))
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*encoded, strict=False))
    return [token for token, _ in shared]


def as_template_message(message: Message, index: int, literals: Literals, template: ChatTemplate) -> dict[str, Any]:
    """A message as `template` expects it: its content is one string that spells no control token.

    Raises:
        InvalidRequestError: a part of the message is not text, or the message has no content.
    """
    param = f"messages[{index}].content"
    said = spoken(message, f"messages[{index}]")
    if isinstance(said, str):
        text = said
    else:
        text = "\n".join(text_of(part, f"{param}[{place}]") for place, part in enumerate(said))
    content = None if not said and message.content is None and template.null_content else literals.hide(text)
    return template_message(
        message, index, content, lambda text, _: literals.hide(text), text_arguments=template.text_arguments
    )
