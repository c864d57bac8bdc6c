"""Fill-in-the-middle prompts are those of the models' cards, and bad words are found as vLLM finds them."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tessera.errors import InvalidRequestError
from tessera.language.prompts.fill_in import FillInFormat, fill_in_format
from tessera.language.sampling_parameters import bad_words, sampling_of
from tessera.tokenizer.tokenizer import Tokenizer as OwnTokenizer
from tessera.wire.chat import CompletionRequest

CARDS = {
    "Qwen2.5-Coder": "<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>",
    "StarCoder": "<fim_prefix>{before}<fim_suffix>{behind}<fim_middle>",
    "DeepSeek-Coder": "<｜begin▁of▁sentence｜><｜fim▁begin｜>{before}<｜fim▁hole｜>{behind}<｜fim▁end｜>",
    "Codestral": "<s>[SUFFIX]{behind}[PREFIX]{before}",
}
CONTROL = {
    "Qwen2.5-Coder": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|endoftext|>"],
    "StarCoder": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<file_sep>"],
    "DeepSeek-Coder": ["<｜begin▁of▁sentence｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    "Codestral": ["<s>", "</s>", "[SUFFIX]", "[PREFIX]"],
    "plain": ["<s>", "</s>"],
}
BEFORE, BEHIND = "def add(a, b):\n    ", "\n    return c\n"


def tokenizer_of(folder, name: str) -> OwnTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "be", "Ġbe", "Ġlo", "lo", "ve", "Ġlove"]
    merges = [("b", "e"), ("Ġ", "be"), ("l", "o"), ("v", "e"), ("Ġ", "lo"), ("Ġlo", "ve")]
    fast = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL[name]])
    first = CONTROL[name][0]
    if name in {"DeepSeek-Coder", "Codestral", "plain"}:
        pairs = [(first, fast.token_to_id(first))]
        fast.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=pairs)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": fast.token_to_id(CONTROL[name][-1])}))
    return OwnTokenizer(folder)


@pytest.mark.parametrize("name", CARDS)
def test_the_prompt_is_that_of_the_models_card(tmp_path, name):
    tokenizer = tokenizer_of(tmp_path, name)
    written = CARDS[name].format(before=BEFORE, behind=BEHIND)
    before, behind = (tokenizer.encode_pieces_now([(text, True)]) for text in (BEFORE, BEHIND))
    expected = tokenizer.fast.encode(written, add_special_tokens=False).ids
    assert fill_in_format(tokenizer, name).prompt(before, behind) == expected


def test_the_middle_ends_at_the_models_own_tokens(tmp_path):
    found = FillInFormat.of(tokenizer_of(tmp_path, "Qwen2.5-Coder"))
    assert found is not None
    assert len(found.ends) == 2


def test_a_model_without_such_tokens_is_named(tmp_path):
    with pytest.raises(InvalidRequestError, match="the model 'plain' has no fill-in-the-middle tokens") as caught:
        fill_in_format(tokenizer_of(tmp_path, "plain"), "plain")
    assert caught.value.param == "suffix"


def test_bad_words_have_a_form_behind_a_space_where_that_is_as_long(tmp_path):
    tokenizer = tokenizer_of(tmp_path, "plain")
    ids = tokenizer.fast.get_vocab()
    # `be` and ` be` have one token each; `love` has two and ` love` one, which vLLM leaves out.
    assert bad_words(["be", " be", "love"], tokenizer) == [
        [ids["be"]],
        [ids["Ġbe"]],
        [ids["be"]],
        [ids["Ġbe"]],
        [ids["lo"], ids["ve"]],
    ]
    with pytest.raises(InvalidRequestError, match="has no tokens"):
        bad_words(["  "], tokenizer)


def test_end_tokens_are_held_also_where_they_do_not_end(tmp_path):
    tokenizer = tokenizer_of(tmp_path, "plain")
    (end,) = tokenizer.stop_ids
    request = CompletionRequest(model="m", prompt="x", ignore_eos=True, min_tokens=3, stop_token_ids=[7])
    sampling = sampling_of(request, tokenizer, max_tokens=9, requested=9, logprobs=None, ends=[8])
    assert sampling.stop_ids == [7, 8]
    assert sampling.held_ids == sorted([7, 8, end])
    free = sampling_of(CompletionRequest(model="m", prompt="x"), tokenizer, max_tokens=9, requested=9, logprobs=None)
    assert (free.stop_ids, free.held_ids, free.banned, free.allowed_ids) == ([end], [], [], None)
