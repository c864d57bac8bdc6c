"""Model directories: found by name or path, made once and whole, refused when damaged."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import json
import struct
from pathlib import Path

import pytest

from tessera.errors import ModelLoadError
from tessera.hub import store
from tessera.hub.cards import checksums, read_card, safetensors_parameters, verify, write_card
from tessera.wire.models import Card

CARD = Card(id="toy", family="Toy", tasks=["chat"], source="test", parameters=6, licence="none")


def weights(path: Path, shape=(2, 3)) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, 24]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))


@pytest.fixture
def toy(monkeypatch):
    """A starter named `toy` that counts how often it is built and can be made to fail."""

    class Point:
        name = "toy"

        def __init__(self) -> None:
            self.calls: list[Path] = []
            self.error: Exception | None = None

        def load(self):
            def build(directory: Path, report) -> Card:
                report("making a toy")
                self.calls.append(directory)
                weights(directory / "model.safetensors")
                if self.error:
                    raise self.error
                return CARD

            return build

    point = Point()
    monkeypatch.setattr(store, "entry_points", lambda group: [point] if group == store.GROUP else [])
    return point


def test_a_starter_is_made_once_and_found_again(toy, tmp_path):
    told: list[str] = []
    assert store.locate("toy", tmp_path) is None
    made = store.ensure("toy", tmp_path, told.append)
    assert made.card.sha256 == checksums(made.path)
    assert store.ensure("toy", tmp_path) == made == store.locate("toy", tmp_path)
    assert len(toy.calls) == 1
    assert told == ["making a toy"]
    store.check(made)


def test_two_at_once_build_it_once(toy, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store.ensure("toy", tmp_path), range(4)))
    assert len(toy.calls) == 1
    assert len({str(one.path) for one in found}) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ModelLoadError("no network")])
def test_a_build_that_fails_leaves_nothing_and_can_be_tried_again(toy, tmp_path, error):
    toy.error = error
    with pytest.raises(ModelLoadError, match=r"No space left on device|no network"):
        store.ensure("toy", tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    toy.error = None
    assert store.ensure("toy", tmp_path).card.id == "toy"


def test_force_makes_it_again(toy, tmp_path):
    made = store.ensure("toy", tmp_path)
    (made.path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelLoadError, match=r"damaged.*models pull toy --force"):
        store.check(made)
    store.check(store.ensure("toy", tmp_path, force=True))


def test_a_process_killed_while_it_replaces_a_model_leaves_no_half_of_it(toy, tmp_path, monkeypatch):
    made = store.ensure("toy", tmp_path)
    whole = sorted(path.name for path in made.path.iterdir())

    def killed(path, **_):
        if Path(path).name in {"toy", ".toy.part-old"} and Path(path).exists():
            next(Path(path).iterdir()).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.ensure("toy", tmp_path, force=True)
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == whole


def test_nothing_is_written_into_a_directory_of_the_users_own(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    store.check(store.ensure(str(tmp_path), tmp_path / "models"))
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_weights_are_read_once_and_again_when_they_change(toy, tmp_path, monkeypatch):
    read: list[Path] = []
    monkeypatch.setattr(store, "verify", lambda path, card: (read.append(path), verify(path, card)))
    made = store.ensure("toy", tmp_path)
    store.check(made)
    store.check(made)
    assert len(read) == 1
    store.check(made, every_byte=True)
    assert len(read) == 2
    data = (made.path / "model.safetensors").read_bytes()
    (made.path / "model.safetensors").write_bytes(data[:-1] + b"x")
    with pytest.raises(ModelLoadError, match="damaged"):
        store.check(made)
    with pytest.raises(ModelLoadError, match="damaged"):
        store.check(made)


def test_a_missing_weight_file_is_named(toy, tmp_path):
    made = store.ensure("toy", tmp_path)
    (made.path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing"):
        verify(made.path, made.card)


def test_an_unknown_name_lists_what_there_is(toy, tmp_path):
    with pytest.raises(ModelLoadError, match=r"there is no model 'other'.*starters toy"):
        store.ensure("other", tmp_path)


def test_a_directory_of_the_users_own_gets_a_derived_card(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 77})
    )
    weights(tmp_path / "a.safetensors")
    weights(tmp_path / "b.safetensors")
    card = read_card(tmp_path)
    assert (card.family, card.parameters, card.context_length) == ("LlamaForCausalLM", 12, 77)
    assert "chat" in card.tasks
    assert store.locate(str(tmp_path), Path("/nowhere")).card == card


@pytest.mark.parametrize("content", [b"", b"12", struct.pack("<Q", 1 << 60), struct.pack("<Q", 5) + b"{not}"])
def test_files_that_are_no_safetensors_are_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"x\.safetensors"):
        safetensors_parameters(path)


def test_a_damaged_card_says_how_to_mend_it(tmp_path):
    weights(tmp_path / "model.safetensors")
    write_card(tmp_path, CARD)
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(ModelLoadError, match="damaged"):
        read_card(tmp_path)


def test_every_installed_starter_can_be_imported():
    points = importlib.metadata.entry_points(group=store.GROUP)
    assert {"smollm2-135m-instruct", "scenes-vision", "shapes-video"} <= {point.name for point in points}
    for point in points:
        assert callable(point.load())
