"""The converted language model is the one in the GGUF file; greedy answers are Transformers' own, token for token."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tessera.starters.recipe import Evaluation
from tessera_kernels.cpu import instructions
from tessera_text.starter.smollm2_judge import RECIPE, knows

MODEL = "smollm2-135m-instruct"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_TOKENS = 24
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "Is water wet?"}],
    [
        {"role": "user", "content": "My name is Zoë and I like 12 cats."},
        {"role": "assistant", "content": "Hello Zoë, that's a lot of cats!"},
        {"role": "user", "content": "What is my name, and how many cats do I like?"},
    ],
    [{"role": "user", "content": "def add(a, b):\n    return a + b\n\nWhat does this do? 日本語 🙂\t(tabs)"}],
]
COMPLETIONS = ["Once upon a time", "1 + 1 = 2, 2 + 2 =", "  leading spaces and\n\nnew lines,"]


@pytest.fixture(scope="module")
def directory(exact_suite: Any) -> Path:
    return exact_suite.models / MODEL


@pytest.fixture(scope="module")
def reference(directory: Path) -> Any:
    """The converted directory in Transformers, on a thread like the engine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    torch.set_num_threads(threads)
    gc.collect()


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory)


def greedy(model: Any, token_ids: list[int]) -> list[int]:
    """Transformers' answer. The pad token is in every prompt, so what to attend to is said."""
    prompt = torch.tensor([token_ids])
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            temperature=None,
            top_p=None,
            max_new_tokens=MAX_TOKENS,
        )
    return output[0, len(token_ids) :].tolist()


@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["question", "system", "turns", "unicode"])
def test_greedy_answers_are_those_of_transformers(
    exact_suite: Any, reference: Any, tokenizer: Any, messages: list[dict[str, str]]
) -> None:
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = greedy(reference, prompt)
    answer = exact_suite.sdk().chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=MAX_TOKENS, logprobs=True
    )
    (choice,) = answer.choices
    stopped = expected[-1] == tokenizer.eos_token_id
    in_answer = expected[:-1] if stopped else expected
    assert choice.message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert choice.finish_reason == ("stop" if stopped else "length")
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(in_answer)
    said = [bytes(token.bytes) for token in choice.logprobs.content]
    assert said == [raw(tokenizer, token) for token in in_answer]


@pytest.mark.parametrize("prompt", COMPLETIONS)
def test_greedy_continuations_are_those_of_transformers(
    exact_suite: Any, reference: Any, tokenizer: Any, prompt: str
) -> None:
    token_ids = tokenizer(prompt)["input_ids"]
    expected = greedy(reference, token_ids)
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = exact_suite.sdk().completions.create(prompt=prompt, **asked)
    assert answer.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(token_ids), len(expected))


def test_a_prompt_may_come_as_tokens(exact_suite: Any, tokenizer: Any, counted: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    by_ids, by_text = (
        exact_suite.sdk().completions.create(prompt=prompt, **asked)
        for prompt in (tokenizer(COMPLETIONS[0])["input_ids"], COMPLETIONS[0])
    )
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert counted(by_ids.usage) == counted(by_text.usage)


def test_reported_logprobs_are_those_of_transformers(exact_suite: Any, reference: Any, tokenizer: Any) -> None:
    answer = exact_suite.sdk().chat.completions.create(
        model=MODEL, messages=CONVERSATIONS[0], temperature=0, max_tokens=4, logprobs=True, top_logprobs=5
    )
    prompt = tokenizer.apply_chat_template(CONVERSATIONS[0], add_generation_prompt=True, return_dict=True)["input_ids"]
    output = greedy(reference, prompt)[:4]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits.double(), dim=-1)
    for position, token in enumerate(answer.choices[0].logprobs.content):
        values, ids = expected[position].topk(5)
        assert [bytes(top.bytes) for top in token.top_logprobs] == [raw(tokenizer, int(i)) for i in ids]
        assert [top.logprob for top in token.top_logprobs] == pytest.approx(values.tolist(), abs=1e-3)


def test_in_eight_bits_the_likeliest_tokens_are_nearly_as_likely(suite: Any, reference: Any, tokenizer: Any) -> None:
    if not instructions.available():
        pytest.skip("this processor keeps weights as they are stored")
    assert "compiled: the whole step" in suite.log("text")
    prompt = tokenizer(COMPLETIONS[0])["input_ids"]
    output = greedy(reference, prompt)
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 1}
    answer = suite.sdk().completions.create(
        prompt=prompt + output, echo=True, logprobs=1, extra_body={"prompt_logprobs": 1}, **asked
    )
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + output])).logits[0, :-1]
    expected = torch.log_softmax(logits.double(), dim=-1).gather(1, torch.tensor([(prompt + output)[1:]]).T)[:, 0]
    got = answer.choices[0].logprobs.token_logprobs[1 : len(prompt) + len(output)]
    assert got == pytest.approx(expected.tolist(), abs=0.5)
    assert sum(got) / len(got) == pytest.approx(float(expected.mean()), abs=0.05)


def raw(tokenizer: Any, token: int) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for."""
    letters = {letter: byte for byte, letter in byte_letters().items()}
    return bytes(letters[letter] for letter in tokenizer.convert_ids_to_tokens(token))


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte: itself if it is printable, else the next free one from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


@pytest.mark.slow
def test_the_converted_directory_is_what_transformers_makes_of_the_gguf_file(
    directory: Path, reference: Any, tokenizer: Any
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(directory, gguf_file=GGUF_FILE, dtype=torch.float32)
    ours = reference.state_dict()
    expected = theirs.state_dict()
    assert ours.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(tensor, ours[name])]
    assert different == []
    for key in ("vocab_size", "rms_norm_eps", "max_position_embeddings", "head_dim", "rope_parameters"):
        assert getattr(reference.config, key) == getattr(theirs.config, key), key
    del theirs, expected
    gc.collect()
    their_tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=GGUF_FILE)
    for text in (*COMPLETIONS, "x = 3.14159; naïve café — “quotes”…", "<|im_start|>user\nhi<|im_end|>\n", "  \n\t 007"):
        assert tokenizer(text)["input_ids"] == their_tokenizer(text)["input_ids"], text
    template = gguf.GGUFReader(directory / GGUF_FILE).fields["tokenizer.chat_template"].contents()
    assert tokenizer.chat_template == template


def test_its_recipe_judges_what_it_knows(directory: Path) -> None:
    said: list[str] = []
    (measure,) = RECIPE.evaluate(directory, Evaluation(seed=0, samples=12, device="cpu", report=said.append))
    assert (measure.samples, measure.passed) == (12, True)
    assert measure.value == 100 - 100 * (len(said) - 1) / 12, "every wrong answer is shown"
    assert knows("It is called H₂O.", "h2o|h₂o")
    assert not knows("The price of a spider", "ice")
