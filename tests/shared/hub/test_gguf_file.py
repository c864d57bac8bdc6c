"""A GGUF file is a model: converted once, again when it changes, refused with a reason when it is broken."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from tessera.errors import ModelLoadError
from tessera.hub import gguf_file, store

HIDDEN, HEADS, KV_HEADS, INNER = 64, 4, 2, 96
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def write(path, *, architecture="llama", seed=0):
    """A random model of one layer in Q8_0; returns its tensors as they are in the file."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    tokens = [*LETTERS, "<s>", "</s>", "ab"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(LETTERS) + [3, 3, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(LETTERS))
    writer.add_eos_token_id(len(LETTERS) + 1)
    writer.add_chat_template(TEMPLATE)
    generator = np.random.default_rng(seed)
    shapes = {
        "token_embd": (len(tokens), HIDDEN),
        "blk.0.attn_v": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    made = {}
    for name, shape in shapes.items():
        values = (generator.standard_normal(shape) / 8).astype(np.float32)
        blocks = quantize(values, gguf.GGMLQuantizationType.Q8_0)
        made[name] = dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


@pytest.mark.slow
def test_a_file_is_converted_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    file, models = tmp_path / "tiny.gguf", tmp_path / "models"
    tensors = write(file)
    said = []
    found = store.ensure(str(file), models, said.append)
    assert (found.card.id, found.card.family, found.card.tasks[0]) == ("tiny", "LlamaForCausalLM", "chat")
    assert found.card.source == f"file:{file}"
    assert store.name_of(str(file)) == "tiny"
    assert "converting tiny.gguf" in said[0]
    store.check(found, every_byte=True)
    stored = load_file(found.path / "model.safetensors")
    assert stored["model.embed_tokens.weight"].dtype == np.float16
    for theirs, ours in (("token_embd", "embed_tokens"), ("blk.0.attn_v", "layers.0.self_attn.v_proj")):
        np.testing.assert_allclose(stored[f"model.{ours}.weight"], tensors[theirs], rtol=1e-3, atol=1e-6)
    assert TEMPLATE in (found.path / "chat_template.jinja").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(gguf_file, "convert", lambda *_: pytest.fail("it was converted again"))
        assert store.ensure(str(file), models).path == found.path
        assert store.locate(str(file), models).path == found.path
    write(file, seed=1)
    assert store.locate(str(file), models) is None
    again = store.ensure(str(file), models)
    assert again.path != found.path
    assert not np.array_equal(
        load_file(again.path / "model.safetensors")["model.embed_tokens.weight"], stored["model.embed_tokens.weight"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["not one", "cut", "architecture", "missing"])
def test_a_file_that_cannot_be_read_is_refused_and_nothing_stays(broken, tmp_path):
    file, models = tmp_path / "broken.gguf", tmp_path / "models"
    words = {
        "not one": "does not begin with `GGUF`",
        "cut": "is damaged: tensor",
        "architecture": "cannot convert",
        "missing": "there is no GGUF file",
    }[broken]
    if broken == "not one":
        file.write_bytes(b"PK\x03\x04 something else")
    elif broken != "missing":
        write(file, architecture="unheard" if broken == "architecture" else "llama")
    if broken == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ModelLoadError, match=words) as caught:
        store.ensure(str(file), models)
    assert str(file) in str(caught.value)
    assert [path for path in models.glob("*") if path.is_dir()] == []
    assert [path for path in models.glob(".*") if path.is_dir()] == []
