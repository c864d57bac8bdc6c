"""The model to measure Whisper with writes a sentence, at the first try, and the one that Transformers writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from tessera.speech.transcription.transcriber import WindowRequest
from tessera.speech.transcription.whisper.model import load_whisper
from tessera_speech.starter import random_whisper


@pytest.mark.slow
def test_it_writes_a_sentence_as_transformers_does(tmp_path: Path) -> None:
    card = random_whisper.write(tmp_path, width=128, layers=2)
    assert "noise" in card.notice
    transcriber = load_whisper(tmp_path, card, device=torch.device("cpu"))
    samples = np.sin(np.arange(48_000) * 0.05).astype("<f4")
    batch = transcriber.batch(1)
    batch.add(0, WindowRequest(samples=samples, rate=16_000))
    found = {}
    while not found:
        found = batch.step()
    (segment,) = found[0].segments
    assert segment.temperature == 0
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path).eval()
    features = transcriber.extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.inference_mode():
        theirs = model.generate(features)[0].tolist()
    assert len(segment.token_ids) >= random_whisper.SENTENCE - 2
    assert segment.token_ids == [token for token in theirs if token < transcriber.end_token]
