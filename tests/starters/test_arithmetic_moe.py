"""The starter `arithmetic-moe`: what judges it was never trained on, the judge is strict, the weights are good."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from tessera.errors import InvalidRequestError
from tessera.hub.cards import read_card
from tessera.starters import optimize
from tessera.starters.recipe import Evaluation
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.tokenizer import Tokenizer
from tessera_text.starter import data, judge, model, phrases, train
from tessera_text.starter.batches import draw_batch, pack
from tessera_text.starter.evaluate import answer, evaluate, held_out
from tessera_text.starter.muon import Muon, orthogonal
from tessera_text.starter.phrases import Phrasings
from tessera_text.starter.recipe import RECIPE, WEIGHTS

DRAWN = 200
MEBIBYTE = 1 << 20


@cache
def trained_on(task: str) -> list[data.ArithmeticQuestion]:
    random = np.random.default_rng(17)
    return [data.draw(random, task, "train", phrasing="train") for _ in range(DRAWN)]


@cache
def all_judged() -> list[data.ArithmeticQuestion]:
    return held_out(23, DRAWN)


@cache
def judged_on(task: str) -> list[data.ArithmeticQuestion]:
    return [question for question in all_judged() if question.task == task]


@pytest.fixture(scope="module")
def tokenizer():
    random = np.random.default_rng(5)
    drawn = [data.draw(random, task, "train", phrasing="train") for task in data.TASKS for _ in range(100)]
    return model.train_tokenizer(iter([question.text for question in drawn] + [question.answer for question in drawn]))


@pytest.mark.parametrize("task", [task for task in data.TASKS if task != "other"])
def test_what_judges_was_never_trained(task):
    trained, judged = trained_on(task), judged_on(task)
    # All operands in all trained questions, whatever their task: a number that is held out is in none of them.
    used = {number for other in data.TASKS for question in trained_on(other) for number in question.numbers}
    strange = {number for question in judged for number in question.numbers if data.number_is_held_out(number)}
    assert strange
    assert not strange & used
    combinations = {tuple(sorted(question.numbers)) for question in judged}
    assert not combinations & {tuple(sorted(question.numbers)) for question in trained}
    assert not {question.text for question in judged} & {question.text for question in trained}


@pytest.mark.parametrize("task", data.TASKS)
def test_questions_say_their_operands_and_answers_are_what_the_judge_works_out(task):
    random = np.random.default_rng(3)
    for question in trained_on(task) + judged_on(task):
        written = re.findall(r"\d+(?:\.\d+)?", question.text)
        assert sorted(written) == sorted(question.numbers), question
        assert judge.is_right(question.ask, question.answer), question
        assert not judge.is_right(question.ask, question.answer[:-1]), question
        places = [place.start() for place in re.finditer(r"\d", question.answer)]
        for place in places[: int(random.integers(1, 4))] + places[-1:]:
            digit = str((int(question.answer[place]) + int(random.integers(1, 10))) % 10)
            changed = question.answer[:place] + digit + question.answer[place + 1 :]
            assert not judge.is_right(question.ask, changed), (question, changed)


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        (("add", "2", "3"), "5"),
        (("add", "2", "3"), "3 + 2 = 5"),
        (("add", "2", "3"), "2 + 3 = 2 + 3"),
        (("subtract", "2", "3"), "2 - 3 = 1"),
        (("multiply", "12", "3"), "12 × 3 = 30 + 7 = 36"),
        (("divide", "17", "5"), "17 / 5 = (15 + 2) / 5 = 2 remainder 7"),
        (("divide", "17", "5"), "17 / 5 = 3"),
        (("ascending", "3", "1", "3"), "1, 3"),
        (("largest", "3", "1"), "3"),
        (("largest", "3", "1"), "Sorted: 1, 3. Smallest: 3."),
        (("largest", "3", "1"), "Sorted: 1, 3. Largest: 1."),
        (("median", "3", "1", "2"), "Sorted: 3, 1, 2. Median: 2."),
        (("convert", "2", "km", "m"), "2 km = 2 km"),
        (("convert", "2", "km", "m"), "2 km = 200000 cm"),
        (("convert", "2", "km", "m"), "2 km = 2000 kg"),
        (("which larger", "1", "2"), "1 < 2, so 1 is larger."),
        (("which larger", "1", "2"), "2 > 1, so 2 is larger."),
        (("is larger", "1", "2"), "1 < 2, so 2 is larger: yes."),
        (("is larger", "1", "2"), "1 < 2, so 1 is larger: yes."),
        (("is larger", "1", "2"), "1 < 2, so no."),
        (("is smaller", "2", "2"), "2 = 2, so 2 is smaller: yes."),
        (("longer", "2", "m", "150", "cm"), "2 m = 200 cm and 150 < 200, so 150 cm is longer."),
        (("longer", "2", "m", "150", "cm"), "2 m = 200 cm and 150 < 2, so 2 m is longer."),
        (("longer", "2", "m", "150", "cm"), "2 m = 2 m and 150 < 200, so 2 m is longer."),
        (("longer", "2", "m", "200", "cm"), "2 m = 200 cm and 200 < 200, so 2 m is longer."),
        (("other",), "2 + 3 = 5"),
    ],
)
def test_the_judge_refuses_what_is_wrong_incomplete_or_beside_the_question(ask, wrong):
    assert not judge.is_right(ask, wrong)


def test_no_phrasing_that_judges_is_trained():
    found = []
    for value in vars(phrases).values():
        found += [value] if isinstance(value, Phrasings) else []
        found += list(value.values()) if isinstance(value, dict) and not isinstance(value, type) else []
    found = [phrasings for phrasings in found if isinstance(phrasings, Phrasings)]
    assert len(found) > len(data.TASKS)
    for phrasings in found:
        assert not set(phrasings.trained) & set(phrasings.held_out)
        assert phrasings.held_out


@pytest.mark.parametrize("task", ["add", "subtract", "multiply", "divide"])
def test_no_politeness_makes_a_trained_phrasing_one_that_judges(task):
    judging = vars(phrases)[task.upper()].held_out
    forms = {
        re.sub(r"\{[ab]\}", "#", phrasing).lower().rstrip(".?") for phrasing in judging if "{name}" not in phrasing
    }
    drawn = [re.sub(r"\d+", "#", question.text).lower() for question in trained_on(task)]
    assert any("please" in text for text in drawn)
    assert not [text for text in drawn if any(form in text for form in forms)]


def test_the_same_seed_and_step_give_the_same_batch(tokenizer):
    first, again, next_step = (
        draw_batch(optimize.generator(9, index), tokenizer, dict.fromkeys(data.TASKS, 1)).ids_BT for index in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, next_step)


def test_a_packed_question_sees_only_itself(tokenizer):
    configuration = model.configuration(tokenizer)
    torch.manual_seed(0)
    decoder = Qwen3MoeForCausalLM._from_config(configuration, attn_implementation="eager", dtype=torch.float32).eval()
    texts = ["<|user|>2 + 3<|assistant|>2 + 3 = 5<|end|>", "<|user|>sort 9, 8<|assistant|>8, 9<|end|>"] * 40
    sequences = [np.array(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    packed = pack(sequences, configuration.bos_token_id + 1)
    row = slice(0, 1)
    with torch.inference_mode():
        together = decoder(
            input_ids=packed.ids_BT[row],
            position_ids=packed.positions_BT[row],
            attention_mask=packed.mask_B1TT[row],
            use_cache=False,
        ).logits[0]
        starts = [place for place in range(96) if packed.positions_BT[0, place] == 0 and packed.real_BT[0, place]]
        assert len(starts) > 3
        for begin, end in zip(starts, [*starts[1:], int(packed.real_BT[0].sum())], strict=True):
            alone = decoder(input_ids=packed.ids_BT[row, begin:end], use_cache=False).logits[0]
            torch.testing.assert_close(together[begin:end], alone, rtol=1e-3, atol=1e-4)


def test_only_answers_are_learnt(tokenizer):
    text = "<|user|>What is 2 + 3?<|assistant|>2 + 3 = 5<|end|>"
    packed = pack(
        [np.array(tokenizer.encode(text, add_special_tokens=False).ids)], tokenizer.token_to_id("<|assistant|>")
    )
    learnt = packed.ids_BT.roll(-1, dims=1)[packed.predicts_BT]
    assert tokenizer.decode(learnt.tolist(), skip_special_tokens=False) == "2 + 3 = 5<|end|>"


def test_experts_in_training_compute_what_transformers_computes():
    ALL_EXPERTS_FUNCTIONS.register(train.EXPERTS, train.sorted_experts)
    configuration = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16, num_key_value_heads=2,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, initializer_range=0.3,
    )  # fmt: skip
    results = []
    for implementation in (train.EXPERTS, "eager"):
        torch.manual_seed(0)
        decoder = Qwen3MoeForCausalLM._from_config(configuration, experts_implementation=implementation)
        logits = decoder(input_ids=torch.arange(48).view(2, 24), use_cache=False).logits
        logits.square().mean().backward()
        results.append((logits.detach(), decoder.model.layers[0].mlp.experts.gate_up_proj.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_muon_steps_are_orthogonal_and_lower_a_loss():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 64, 32)).float())
    assert values.min() > 0.5
    assert values.max() < 1.5
    target, experts = torch.randn(4, 16, 8), nn.Parameter(torch.zeros(4, 16, 8))
    optimizer = Muon([experts], 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (experts - target).square().sum().backward()
        optimizer.step()
    assert (experts - target).square().mean() < 0.1 * target.square().mean()


def shipped_tokenizer() -> Tokenizer:
    return Tokenizer(WEIGHTS)


def test_the_template_shows_the_last_question_alone():
    template = ChatTemplate.of(WEIGHTS)
    said = [("system", "Be rude."), ("user", "1 + 1"), ("assistant", "1 + 1 = 2"), ("user", " 2 + 2 ")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert template.render(messages) == model.prompt("2 + 2")
    with pytest.raises(InvalidRequestError, match="no question of a user"):
        template.render([{"role": "system", "content": "Be rude."}])


@pytest.mark.parametrize(
    "text", ["What is 347 + 256?", "déjà vu, 漢字 🙂 zebra-crossing\n\n\tx", "(240 + 42) / 6 = 47"]
)
def test_any_text_can_be_written_in_tokens_and_digits_stand_alone(text):
    tokenizer = shipped_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert all(len(piece) == 1 for piece in map(tokenizer.token_text, ids) if any(map(str.isdecimal, piece)))


def test_what_is_shipped_is_small_open_and_says_how_good_it_is():
    card = read_card(WEIGHTS)
    assert card.id == RECIPE.name
    assert card.licence == "apache-2.0"
    assert card.seed is not None
    assert card.data
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 16 * MEBIBYTE
    assert {path.suffix for path in WEIGHTS.iterdir()} == {".json", ".jinja", ".safetensors"}
    assert card.quality
    assert all(measure.passed for measure in card.quality)
    assert {measure.name for measure in card.quality if measure.at_least} >= {
        "exact answers", "other topics declined", *(f"least used expert, layer {layer}" for layer in range(4))
    }  # fmt: skip


def test_held_out_questions_are_answered_exactly_and_no_expert_is_dead():
    wrong: list[str] = []
    for measure in evaluate(WEIGHTS, Evaluation(seed=41, samples=8, device="cpu", report=wrong.append)):
        assert measure.passed, (measure, wrong)


def test_it_answers_what_the_readme_shows():
    asked = ["What is 347 plus 256?", "Sort 42, 7 and 311.", "Which is longer, 3 m or 250 cm?", "Tell me a joke."]
    assert answer(WEIGHTS, asked).texts == [
        "347 + 256 = 500 + 90 + 13 = 603",
        "7, 42, 311",
        "3 m = 300 cm and 250 < 300, so 3 m is longer.",
        phrases.REFUSAL,
    ]
