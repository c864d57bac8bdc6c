"""Makes prompts of conversations with images, through the model's own processor in a thread pool.

Images are decoded in processes of their own (`image_processes`), which also make huge ones smaller. Transformers'
processor makes both the token ids, with one token for each image feature, and the pixel tensors that are sent to the
engine; it resizes without the interpreter's lock, so threads suffice for that.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoProcessor

from tessera.engine.client import EngineClient
from tessera.engine.fair_gate import FairGate
from tessera.engine.host import context_of, directory_of
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.language.attachments.reading import AttachmentReader
from tessera.language.chat import ChatCompletions
from tessera.language.conversation import render_prompt, spoken, template_message, text_of
from tessera.language.generation import GenerationLimits, Generator, Prompt
from tessera.language.metrics import GenerationMetrics
from tessera.language.parsers.dialects import Dialect
from tessera.language.prompts.templates import Templates
from tessera.language.tokens import Tokenization
from tessera.settings.vision import VisionSettings
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.tenant import tenant_var
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import ImagePart, Message
from tessera.wire.engine import Array, Ready
from tessera.wire.image_decoding import EncodedImage
from tessera_vision.image_processes import ImageProcesses

LOW_DETAIL = 512
"""Longest side of an image with `detail: low`, in pixels, as OpenAI defines it."""
PREPARED = 4
"""Requests that are decoded, or are in the model's processor, at the same time."""
_TOKENS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})


@dataclass(frozen=True)
class VisionTools:
    """The tools of one model that the vision routes use.

    Attributes:
        chat: answers conversations.
        tokens: converts between text and token ids.
    """

    chat: ChatCompletions
    tokens: Tokenization


def build_tools(
    ready: Ready,
    engine: EngineClient,
    metrics: GenerationMetrics,
    settings: VisionSettings,
    pool: ThreadPoolExecutor,
    attachments: AttachmentReader,
    processes: ImageProcesses,
) -> VisionTools:
    """Make the tools of the model that the engine has loaded."""
    card, directory = ready.cards[0], directory_of(ready)
    tokenizer = Tokenizer(directory)
    generator = Generator(engine, tokenizer, card.id, metrics)
    preprocessor = Preprocessor(directory, settings, tokenizer)
    limits = GenerationLimits(
        context_length=context_of(card),
        max_output_tokens=settings.max_output_tokens,
        max_choices=settings.max_choices,
        clamps=settings.max_tokens_policy == "clamp",
    )

    gate = FairGate(PREPARED, settings.engine.max_waiting)

    async def prompter(request: ChatCompletionRequest) -> Prompt:
        request = await attachments.read(request)
        tokenizer.check_length(request.characters, limits.context_length, param="messages")
        encoded = preprocessor.images_of(request)
        async with gate.turn(tenant_var.get(), work=1 + len(encoded)):
            images = await processes.decode(encoded) if encoded else []
            return await asyncio.get_running_loop().run_in_executor(pool, preprocessor.prompt, request, images)

    return VisionTools(
        ChatCompletions(card.id, generator, prompter, limits, preprocessor.dialect),
        Tokenization(tokenizer, prompter, limits),
    )


class Preprocessor:
    """The template and the processor of a model directory.

    Args:
        directory: the model directory.
        settings: limits of images, and the parsers of tool calls and reasoning.
        tokenizer: of the model.

    Raises:
        ModelLoadError: the directory has no chat template, or no processor that Transformers can load.
    """

    def __init__(self, directory: Path, settings: VisionSettings, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._templates = Templates(
            directory,
            directory.name,
            allowed=settings.request_chat_templates,
            setting="vision.request_chat_templates",
        )
        template = self._templates.own
        if template is None:
            raise ModelLoadError(f"{directory} has no chat template")
        dialect = Dialect.of(template.source, tokenizer.control, takes_tools="tools" in template.variables)
        self.dialect = dialect.overridden(settings.tool_parser, settings.reasoning_parser)
        self._max_images = settings.max_images
        try:
            self._processor: Any = AutoProcessor.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            # Processors raise whatever their own arithmetic on a stranger's values raises.
            raise ModelLoadError(f"cannot load the processor in {directory}: {error}") from error

    def images_of(self, request: ChatCompletionRequest) -> list[EncodedImage]:
        """Return the images of a request as they were sent, in order.

        Raises:
            InvalidRequestError: they are too many.
        """
        images = [
            EncodedImage(
                url=part.url,
                param=f"messages[{index}].content[{place}].image_url.url",
                longest_side=LOW_DETAIL if part.detail == "low" else None,
            )
            for index, message in enumerate(request.messages)
            if isinstance(message.content, list)
            for place, part in enumerate(message.content)
            if isinstance(part, ImagePart)
        ]
        if len(images) > self._max_images:
            raise InvalidRequestError(
                f"`messages` have {len(images)} images; at most {self._max_images} are allowed", param="messages"
            )
        return images

    def prompt(self, request: ChatCompletionRequest, images: list[Image.Image]) -> Prompt:
        """Render the template and run the processor.

        Args:
            request: the conversation.
            images: its images, decoded, in order.

        Raises:
            TesseraError: a message cannot be used; names the part.
        """
        template = self._templates.of(request)
        messages = [self._message(message, index, template) for index, message in enumerate(request.messages)]
        text = render_prompt(template, self.dialect, request, messages, self._plain, as_content=_text_parts)
        try:
            output = self._processor(text=text, images=images or None, add_special_tokens=False)
        except (ValueError, IndexError) as error:
            raise InvalidRequestError(f"the model's processor refuses this: {error}", param="messages") from error
        ids = output["input_ids"]
        token_ids = list(ids[0]) if len(ids) and not isinstance(ids[0], int) else list(ids)
        media = {name: _array(value) for name, value in output.items() if name not in _TOKENS}
        return Prompt([int(token) for token in token_ids], media, text)

    def _message(self, message: Message, index: int, template: ChatTemplate) -> dict[str, Any]:
        param = f"messages[{index}].content"
        said = spoken(message, f"messages[{index}]")
        if isinstance(said, str):
            return self._written(message, index, template, _text_parts(self._plain(said, param)))
        parts: list[dict[str, Any]] = []
        for place, part in enumerate(said):
            if isinstance(part, ImagePart):
                parts.append({"type": "image"})
            else:
                at = f"{param}[{place}].text"
                parts.extend(_text_parts(self._plain(text_of(part, at), at)))
        return self._written(message, index, template, parts)

    def _written(
        self, message: Message, index: int, template: ChatTemplate, parts: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return template_message(message, index, parts, self._plain, text_arguments=template.text_arguments)

    def _plain(self, text: str, param: str) -> str:
        """A user's text, which may not spell a control token: the processor would take it for a real one."""
        spelled = next((token for token in self._tokenizer.control if token in text), None)
        if spelled is not None:
            raise InvalidRequestError(
                f"`{param}` has {spelled!r}, which is a control token of this model; write it in another way",
                param=param,
            )
        return text


def _text_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def _array(value: Any) -> Array:
    values = np.ascontiguousarray(value)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return Array(dtype=values.dtype.name, shape=list(values.shape), data=values.tobytes())
