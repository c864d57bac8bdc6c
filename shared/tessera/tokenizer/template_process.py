"""The process in which a chat template of a client is compiled and rendered: one job from stdin, one result to stdout.

A sandbox of Jinja keeps a template from Python's objects, but not from loops without end or from texts of gigabytes,
not even while it is compiled. So the process bounds its own memory and processor time, and whoever started it kills it
when it takes too long. Started by `tessera.tokenizer.request_template`; knows nothing about requests.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

import msgspec

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.tokenizer.chat_template import ChatTemplate

MEMORY_BYTES = 512 * 1024 * 1024
"""Most memory that the process may have."""
CPU_S = 2
"""Most seconds of a core."""
MOST_TEXT = 4 * 1024 * 1024
"""Most characters of a rendered text."""


class TemplateJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with a template.

    `messages` None: describe the template. Else render them.
    """

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = {}
    opens_turn: bool = True
    continues: bool = False


class TemplateResult(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered text, a description, or why there is none."""

    text: str = ""
    variables: list[str] = []
    text_arguments: bool = False
    null_content: bool = False
    problem: str = ""
    param: str | None = None


def run(job: TemplateJob) -> TemplateResult:
    """Compile a template, and describe or render it."""
    try:
        template = ChatTemplate(job.source, job.special_tokens)
        if job.messages is None:
            return TemplateResult(
                variables=sorted(template.variables),
                text_arguments=template.text_arguments,
                null_content=template.null_content,
            )
        text = template.render(
            job.messages,
            tools=job.tools,
            variables=job.variables,
            opens_turn=job.opens_turn,
            continues=job.continues,
        )
    except InvalidRequestError as error:
        return TemplateResult(problem=error.message, param=error.param)
    except (ModelLoadError, RecursionError, OverflowError) as error:
        return TemplateResult(problem=f"the template is broken: {error}", param="chat_template")
    except MemoryError:
        return TemplateResult(problem="the template takes too much memory", param="chat_template")
    if len(text) > MOST_TEXT:
        return TemplateResult(problem=f"the template writes more than {MOST_TEXT} characters", param="chat_template")
    return TemplateResult(text=text)


def main() -> None:
    """Do the job of stdin within the limits."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TemplateJob)
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
