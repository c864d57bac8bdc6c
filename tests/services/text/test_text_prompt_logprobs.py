"""How likely a prompt's own tokens were: the numbers of Transformers' forward, in the shapes of OpenAI and vLLM."""

from __future__ import annotations

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from tessera.device.hardware import choose
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.runner.build import build_runner
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Generate, GeneratedTokens, Ready, Sampling

MODEL = "tiny-text"
PROMPT = "It is a story of 12 cats, caf\u00e9s and a dog."


@pytest.fixture(scope="module")
def reference(tiny_text_model):
    """Token ids, and log-probabilities [positions, vocabulary] of what follows each."""
    ids = Tokenizer.from_file(str(tiny_text_model / "tokenizer.json")).encode(PROMPT).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_text_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        return ids, torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_scores_the_prompt(client, reference, stream):
    ids, logprobs = reference
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "extra_body": {"ignore_eos": True}}
    plain = client.completions.create(**asked, logprobs=2).choices[0]
    if stream:
        chunks = [c.choices[0] for c in client.completions.create(**asked, echo=True, logprobs=2, stream=True)]
        text = "".join(chunk.text for chunk in chunks)
        found = {
            name: [value for chunk in chunks if chunk.logprobs for value in getattr(chunk.logprobs, name)]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
    else:
        choice = client.completions.create(**asked, echo=True, logprobs=2).choices[0]
        text, found = choice.text, choice.logprobs.model_dump()
    assert text == PROMPT + plain.text
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    wanted = [logprobs[place, token].item() for place, token in enumerate(ids[1:])]
    assert found["token_logprobs"][1 : len(ids)] == pytest.approx(wanted, abs=1e-4)
    assert found["token_logprobs"][len(ids) :] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-4)
    for place in range(1, len(ids)):
        best = logprobs[place - 1].topk(2).values.tolist()
        top = found["top_logprobs"][place].values()  # by text, so tokens that are pieces of characters share an entry
        assert [min(abs(value - other) for other in best) for value in top] == pytest.approx([0] * len(top), abs=1e-4)
    assert found["text_offset"][: len(ids)] == sorted(found["text_offset"][: len(ids)])
    assert found["text_offset"][len(ids)] == len(PROMPT)


def test_prompt_logprobs_have_vllms_shape(client, reference):
    ids, logprobs = reference
    asked = {"model": MODEL, "max_tokens": 1, "extra_body": {"prompt_logprobs": 3}}
    first, *found = client.completions.create(prompt=PROMPT, **asked).choices[0].prompt_logprobs
    assert first is None
    for place, (token, entry) in enumerate(zip(ids[1:], found, strict=True)):
        assert entry[str(token)]["logprob"] == pytest.approx(logprobs[place, token].item(), abs=1e-4)
        assert entry[str(token)]["rank"] == 1 + (logprobs[place] > logprobs[place, token]).sum().item()
        assert {str(other) for other in logprobs[place].topk(3).indices.tolist()} <= set(entry)
    chat = client.chat.completions.create(messages=[{"role": "user", "content": PROMPT}], **asked)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert chat.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    "changes", [{}, {"max_batch_tokens": 1}, {"max_batch_tokens": 7}, {"kv_cache_bytes": 40 * 4 * 512}]
)
def test_pieces_of_a_prompt_and_preemption_change_no_score(tiny_text_model, reference, changes):
    ids, logprobs = reference
    settings = SequenceEngineSettings(**({"page_size": 4, "kv_cache_bytes": 1 << 20} | changes))
    runner = build_runner(
        tiny_text_model, choose("cpu", threads=1), page_size=4, kv_cache_bytes=settings.kv_cache_bytes
    )
    engine = SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}))
    for number in range(4):
        sampling = Sampling(max_tokens=40, prompt_logprobs=number)
        engine.submit(Generate(request_id=str(number), token_ids=ids, sampling=sampling))
    scores = {}
    while engine.has_work():
        for answer in engine.step():
            assert isinstance(answer, GeneratedTokens), answer
            if answer.prompt_scores:
                assert answer.request_id not in scores, "they are said once"
                scores[answer.request_id] = answer.prompt_scores
    if "kv_cache_bytes" in changes:
        assert engine.scheduler.preemptions > 0
    wanted = [logprobs[place, token].item() for place, token in enumerate(ids[1:])]
    for number in range(4):
        found = scores[str(number)]
        assert [score.logprob for score in found] == pytest.approx(wanted, abs=1e-4)
        assert {len(score.top) for score in found} == {number}
