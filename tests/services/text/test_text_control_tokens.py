"""Thoughts and fill-in-the-middle over HTTP, with a model that writes control tokens where real ones do.

The next token depends on the last one alone, so that every answer is known: see `CHAINS`.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

MODEL = "chain-text"
CHAINS = (
    ["<think>", "H", "m", ".", "</think>", "S", "o", "!", "</s>"],
    ["<|fim_middle|>", "x", "y", "<|fim_pad|>"],
)
CONTROL = ["<think>", "</think>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
TURN = {"role": "user", "content": "abc"}
ASKED = {"model": MODEL, "max_tokens": 20, "temperature": 0, "messages": [TURN]}


@pytest.fixture(scope="module")
def chain_model(tiny_text_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer

    directory = shutil.copytree(tiny_text_model, tmp_path_factory.mktemp("chain") / MODEL)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = transformers.LlamaConfig.from_pretrained(directory)
    config.vocab_size = tokenizer.get_vocab_size()
    config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim = 320, 5, 5, 64
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        # What is left of the model: the last token's number, and the row of `lm_head` that answers it.
        model.model.embed_tokens.weight.copy_(torch.eye(config.vocab_size, config.hidden_size))
        model.lm_head.weight.zero_()
        for chain in CHAINS:
            ids = [tokenizer.token_to_id(token) for token in chain]
            for last, following in itertools.pairwise(ids):
                model.lm_head.weight[following, last] = 1.0
    model.save_pretrained(directory)
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>{# </think> #}")
    return directory


@pytest.fixture(scope="module")
def chain(start_service: Any, chain_model: Path) -> Iterator[Any]:
    with start_service("text", text__model=str(chain_model), text__engine__threads="1") as service:
        yield service


def post(service: Any, path: str, **body: Any) -> httpx.Response:
    answer = httpx.post(f"{service.url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_thinking_block_comes_before_the_text(chain):
    message = post(chain, "/v1/messages", **ASKED).json()
    thought, text = message["content"]
    assert (thought["type"], thought["thinking"], bool(thought["signature"])) == ("thinking", "Hm.", True)
    assert text == {"type": "text", "text": "So!"}
    assert message["stop_reason"] == "end_turn"
    # The history takes what the answer gave.
    turns = [TURN, {"role": "assistant", "content": message["content"]}, TURN]
    assert post(chain, "/v1/messages", **{**ASKED, "messages": turns}).json()["content"] == message["content"]


def test_a_stream_ends_the_thinking_block_before_the_text_begins(chain):
    stream = post(chain, "/v1/messages", **ASKED, stream=True).text
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    shape: list[Any] = []
    said: dict[str, str] = {}
    for event in events:
        if event["type"] == "content_block_delta":
            kind = event["delta"]["type"]
            said[kind] = said.get(kind, "") + "".join(v for k, v in event["delta"].items() if k != "type")
        else:
            kind = event.get("content_block", {}).get("type", "")
        place = (event["type"], event.get("index"), kind)
        if place not in shape[-1:]:
            shape.append(place)
    assert [place for place in shape if place[0] != "ping"] == [
        ("message_start", None, ""),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, ""),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, ""),
        ("message_delta", None, ""),
        ("message_stop", None, ""),
    ]
    assert (said["thinking_delta"], said["text_delta"]) == ("Hm.", "So!")


def test_a_completion_with_a_suffix_fills_in_the_middle(chain, chain_model):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(chain_model / "tokenizer.json"))
    before, behind = "def f(a):", " return a"
    asked = {"model": MODEL, "prompt": before, "suffix": behind, "temperature": 0, "max_tokens": 20}
    answer = post(chain, "/v1/completions", **asked, return_token_ids=True).json()
    (choice,) = answer["choices"]
    plain = [[tokenizer.token_to_id(character) for character in text.replace(" ", "Ġ")] for text in (before, behind)]
    first, between, last = (tokenizer.token_to_id(f"<|fim_{name}|>") for name in ("prefix", "suffix", "middle"))
    assert choice["prompt_token_ids"] == [first, *plain[0], between, *plain[1], last]
    assert answer["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"])
    assert (choice["text"], choice["finish_reason"]) == ("xy", "stop")
    whole = post(chain, "/v1/completions", **asked, stream=True).text
    pieces = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "xy"
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
