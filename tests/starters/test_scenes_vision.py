"""`scenes-vision`: what it is judged on it was never trained on, and the service sees what training saw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tessera.hub.cards import read_card, verify
from tessera.starters.recipe import Evaluation
from tessera.starters.run import Run
from tessera_vision.starter import evaluate
from tessera_vision.starter.comparisons import compare
from tessera_vision.starter.conversations import conversation, converse, pack
from tessera_vision.starter.data import (
    COLORS,
    SHAPES,
    TRAINED_DIGITS,
    Digit,
    GridScene,
    PrintedWord,
    Sampler,
    Shape,
    font_is_held_out,
    layout_is_held_out,
    pair_is_held_out,
)
from tessera_vision.starter.drawing import Painter, seen
from tessera_vision.starter.naming import ShapeKind
from tessera_vision.starter.questions import TASKS, SceneQuestion, ask, described, description
from tessera_vision.starter.recipe import RECIPE, WEIGHTS
from tessera_vision.starter.train import TrainingPlan, prepare, train

PICTURE = GridScene(
    (
        Shape(0, "red", "circle", "large"),
        Shape(2, "blue", "star", "small"),
        PrintedWord(1, "tree", "orange", "cmr10", capitals=False),
        Digit(8, 7, "black", 0),
    ),
    dark=False,
)


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter()


def scenes(painter: Painter, split: str, count: int = 1500) -> list[GridScene]:
    sampler, rng = Sampler(split, painter.values), np.random.default_rng(5)
    return [sampler.scene(rng) for _ in range(count)]


def has_new_pair(scene: GridScene) -> bool:
    return any(pair_is_held_out(shape.color, shape.shape) for shape in scene.shapes)


def test_every_color_and_every_shape_lacks_one_partner_in_training():
    held_out = [(color, shape) for color in COLORS for shape in SHAPES if pair_is_held_out(color, shape)]
    assert sorted(color for color, _ in held_out) == sorted(COLORS)
    assert sorted(shape for _, shape in held_out) == sorted(SHAPES)


def test_no_training_scene_has_what_is_held_out(painter):
    for scene in scenes(painter, "train"):
        assert not has_new_pair(scene)
        assert not layout_is_held_out(scene.items)
        assert not any(font_is_held_out(word.text, word.font) for word in scene.words)
        assert all(digit.sample < TRAINED_DIGITS for digit in scene.digits)


@pytest.mark.parametrize("split", ["held-out", "unseen"])
def test_what_is_judged_on_was_held_out(painter, split):
    for scene in scenes(painter, split):
        assert has_new_pair(scene) is (split == "unseen")
        assert layout_is_held_out(scene.items)
        assert all(font_is_held_out(word.text, word.font) for word in scene.words)
        assert all(digit.sample >= TRAINED_DIGITS for digit in scene.digits)
        assert all(painter.values[digit.sample] == digit.value for digit in scene.digits)


def test_training_never_speaks_of_a_pair_that_it_never_shows(painter):
    shown = scenes(painter, "train", 400)
    told = ["".join(c.prompts + c.answers) for c in converse(np.random.default_rng(1), shown, single=6, several=400)]
    wrong = [text for text in told if any(pair in text for pair in evaluate.NEW_PAIRS)]
    assert wrong == []


def test_questions_about_new_pairs_name_them_or_are_answered_by_them(painter):
    for sample in evaluate.unseen(painter, 3, 50):
        text = f"{sample.question.text} {sample.question.answer}"
        assert any(pair in text for pair in evaluate.NEW_PAIRS)


def test_a_scene_is_described_in_reading_order():
    assert description(PICTURE) == (
        "A large red circle at the top left, a small blue star at the top right, the word tree in the middle "
        "and a handwritten 7 at the bottom right."
    )


def test_training_knows_where_each_word_of_a_description_is_seen(tiny, painter):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny[0], local_files_only=True)
    for scene in (PICTURE, *scenes(painter, "held-out", 100)):
        spoken = tokenizer.encode(f" {description(scene)}", add_special_tokens=False)
        assert len(described(scene)) == len(spoken)
    assert described(PICTURE)[:2] == ((0,), (0,))
    assert described(PICTURE)[-3:] == ((8,), (8,), ())


def test_kinds_count_what_they_name():
    circle, star = PICTURE.shapes
    assert circle in ShapeKind()
    assert circle in ShapeKind(color="red", shape="circle")
    assert circle not in ShapeKind(size="small")
    assert star not in ShapeKind(color="red")
    assert ShapeKind(size="small", color="orange", shape="cross").named(plural=True) == "small orange crosses"


@pytest.mark.parametrize("task", TASKS[:-1])
def test_every_task_has_questions_with_one_short_answer(painter, task):
    rng = np.random.default_rng(2)
    made = [question for scene in scenes(painter, "train", 300) if (question := ask(rng, scene, task))]
    assert len(made) > 60
    assert {question.task for question in made} == {task}
    assert len({question.text for question in made}) >= 10


def test_comparisons_are_balanced(painter):
    rng, pool = np.random.default_rng(2), scenes(painter, "train", 64)
    made = [found.question.answer for _ in range(1500) if (found := compare(rng, pool))]
    assert 0.7 < made.count("yes") / made.count("no") < 1.4
    assert 0.7 < made.count("the first image") / made.count("the second image") < 1.4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A directory made by the whole recipe in two steps a stage."""
    work, output = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("output")
    run = Run(seed=7, device=torch.device("cpu"), work=work, output=output, report=lambda _: None)
    card = train(run, TrainingPlan(word_steps=2, sight_steps=2, answer_steps=2, words=4, pictures=4))
    return output, card


def test_the_recipe_makes_a_directory_that_answers(tiny, painter):
    directory, card = tiny
    assert card.parameters < 3_000_000
    sample = evaluate.Sample(
        (painter.draw(PICTURE, np.random.default_rng(0)).pixels,), SceneQuestion("read", "Read.", "")
    )
    (answer,) = evaluate.InProcessVisionModel(directory, "cpu").answers([sample])
    assert isinstance(answer, str)


@pytest.mark.parametrize("pictures", [0, 1, 3])
@pytest.mark.parametrize("pictures_first", [True, False])
def test_a_prompt_in_training_is_the_one_that_the_service_makes(tiny, pictures, pictures_first):
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(tiny[0], local_files_only=True)
    turns = [SceneQuestion("read", "What is this?", "a star"), SceneQuestion("locate", "Where is it?", "at the center")]
    talk = conversation(np.random.default_rng(1), turns, tuple(range(pictures)))
    (packed,) = pack(processor.tokenizer.backend_tokenizer, [talk], packs=1)
    images, text = [{"type": "image"}] * pictures, [{"type": "text", "text": "What is this?"}]
    messages = [
        {"role": "user", "content": images + text if pictures_first else text + images},
        {"role": "assistant", "content": "a star"},
        {"role": "user", "content": "Where is it?"},
    ]
    rendered = processor.apply_chat_template(messages, add_generation_prompt=True)
    drawn = [Image.new("RGB", (90, 60), "white")] * pictures
    served = list(processor(text=rendered, images=drawn or None, add_special_tokens=False)["input_ids"][0])
    assert packed.ids[0, : len(served)].tolist() == served
    assert processor.tokenizer.decode(packed.labels[0, len(served) - 1 : -1]) == " at the center<end_of_utterance>"


@pytest.mark.parametrize("size", [(72, 72), (100, 100), (160, 101), (75, 200), (40, 30)])
def test_training_sees_pixels_as_the_service_does(tiny, size):
    from transformers import AutoProcessor

    pixels = np.random.default_rng(3).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    processor = AutoProcessor.from_pretrained(tiny[0], local_files_only=True).image_processor
    served = np.asarray(processor([[Image.fromarray(pixels)]])["pixel_values"])[0][0]
    np.testing.assert_allclose(seen(pixels).transpose(2, 0, 1) / 127.5 - 1, served, atol=1.01 / 127.5)


def test_training_begins_alike_every_time(tmp_path):
    one, two = (
        Run(seed=7, device=torch.device("cpu"), work=tmp_path, output=tmp_path, report=lambda _: None) for _ in range(2)
    )
    assert prepare(one)[1].tokenizer.get_vocab() == prepare(two)[1].tokenizer.get_vocab()


needs_weights = pytest.mark.skipif(not (WEIGHTS / "card.json").is_file(), reason="the weights are not there yet")


@needs_weights
def test_the_shipped_model_is_whole_and_small_and_met_its_bars():
    card = read_card(WEIGHTS)
    verify(WEIGHTS, card)
    assert card.id == RECIPE.name
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 16_000_000
    bars = {measure.name: measure.at_least for measure in card.quality if measure.at_least is not None}
    assert bars == {
        "exact answers on held-out scenes": 95,
        "exact on pairs of colour and shape never trained": 85,
    }
    assert all(measure.passed for measure in card.quality)


@needs_weights
def test_the_shipped_model_answers_held_out_questions():
    measures = RECIPE.evaluate(WEIGHTS, Evaluation(seed=11, samples=6, device="cpu", report=lambda _: None))
    found = {measure.name: measure.value for measure in measures}
    assert found["exact answers on held-out scenes"] >= 88
    assert found["exact on pairs of colour and shape never trained"] >= 75
