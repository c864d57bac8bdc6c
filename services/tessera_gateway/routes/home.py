"""The page at `/`, with links to the API description, the models and the state of the gateway."""

from __future__ import annotations

from litestar import HttpMethod, MediaType, Response, route

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tessera</title>
<body style="font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem">
<h1>Tessera</h1>
<p>Text, vision, video and speech behind OpenAI's API.</p>
<ul>
<li><a href="/docs">The API, to read and to try</a></li>
<li><a href="/v1/models">Models</a></li>
<li><a href="/ready">State of each part</a>, <a href="/metrics">metrics</a></li>
</ul>
</body></html>
"""


@route("/", http_method=[HttpMethod.GET, HttpMethod.HEAD], include_in_schema=False, sync_to_thread=False)
def home() -> Response[str]:
    """Links. The page needs no key and shows nothing about the installation. Clients ask by HEAD whether a server is
    there (Claude Code, Ollama's)."""
    return Response(PAGE, media_type=MediaType.HTML)
