"""A text service over a tiny random Llama with a byte tokenizer: real processes, made in a second."""

from __future__ import annotations

import json

import openai
import pytest
from tests.shared.language.fake_speech import speech_server


@pytest.fixture(scope="session")
def tiny_text_model(tmp_path_factory):
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    directory = tmp_path_factory.mktemp("models") / "tiny-text"
    directory.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.4,
        bos_token_id=256,
        eos_token_id=257,
    )
    torch.manual_seed(11)
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
    )
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


@pytest.fixture(scope="session")
def speech_stand_in():
    """What the text service takes for the speech service."""
    with speech_server() as server:
        yield server


@pytest.fixture(scope="session")
def text(start_service, tiny_text_model, speech_stand_in):
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1"}
    with start_service("text", **settings, speech__url=speech_stand_in.url) as service:
        yield service


@pytest.fixture
def client(text):
    return openai.OpenAI(base_url=f"{text.url}/v1", api_key="none", max_retries=0, timeout=60)
