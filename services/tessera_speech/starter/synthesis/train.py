"""Trains the voices: the teacher's readings, three stages, a model directory in float16. Judges nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import VitsModel

from tessera.starters.run import Run
from tessera.wire.models import Card
from tessera_speech.starter.synthesis import readings
from tessera_speech.starter.synthesis.data import TrainingUtterance, fitted_aligner, spellings, utterances
from tessera_speech.starter.synthesis.model import HIDDEN, VOICES, adopt_decoder, untrained, write_tokenizer
from tessera_speech.starter.synthesis.teacher import RATE, PiperTeacher, decoder_weights
from tessera_speech.starter.synthesis.text_side import SpeechStage, SpellingStage
from tessera_speech.starter.synthesis.voices import VoicePair, VoiceStage, recordings

READINGS = 40
"""Number of files of readings, which are about two hours of speech."""
RECORDED = 300
"""Utterances on which the decoder is trained."""
SPELLING_STEPS = 600
SPEECH_STEPS = 2000
VOICES_STEPS = 1200
EXACT = (".convs1.", ".convs2.")
"""Parameters that stay in float32: their biases include the decoder's offset, beside which float16 is too coarse."""


def train(run: Run) -> Card:
    """Train what is not yet trained, and write the model to `run.output`."""
    teacher = PiperTeacher()
    paths = [readings.path_of(run.work / "readings", number) for number in range(READINGS)]
    for number, path in enumerate(paths):
        if not path.exists():
            run.check_time()
            run.report(f"the teacher reads: {number + 1} of {READINGS} files of {readings.SENTENCES} sentences")
            readings.make(teacher, path.parent, run.seed, number)
    aligner = fitted_aligner(teacher, run.seed)
    spelled = spellings(run.work / "spellings.json", teacher, aligner, run.seed)
    spoken = utterances(paths, aligner, spelled.labels, voice=0)
    run.reseed("model")
    model, head = untrained(), nn.Linear(HIDDEN, len(spelled.labels))
    adopt_decoder(model, decoder_weights())
    model.to(run.device).train()
    head.to(run.device)
    run.fit(SpellingStage(run, model, head, spelled, steps=SPELLING_STEPS))
    run.check_time()
    recorded = _recordings(run.work / "recordings.safetensors", model, spoken[:RECORDED])
    speech = SpeechStage(run, model, head, spoken, steps=SPEECH_STEPS)
    run.fit(speech)
    speech.finish()
    voices = VoiceStage(run, model, recorded, steps=VOICES_STEPS)
    run.fit(voices)
    voices.finish()
    save(model, run.output)
    return _card(model)


def save(model: VitsModel, directory: Path) -> None:
    """Write a model directory in float16, with `EXACT` parameters in float32."""
    weights = {
        name: value if name.endswith("bias") and any(part in name for part in EXACT) else value.half()
        for name, value in model.state_dict().items()
    }
    model.cpu().save_pretrained(directory, state_dict=weights)
    write_tokenizer(directory)


def _recordings(path: Path, model: VitsModel, chosen: list[TrainingUtterance]) -> list[VoicePair]:
    if path.is_file():
        kept = load_file(path)
        return [
            VoicePair(one, tuple(kept[f"{number}.{voice}"].numpy() for voice in range(len(VOICES))))
            for number, one in enumerate(chosen)
        ]
    made = recordings(model, chosen)
    partial = path.with_suffix(".partial")
    tensors = {
        f"{number}.{voice}": torch.from_numpy(samples)
        for number, one in enumerate(made)
        for voice, samples in enumerate(one.samples)
    }
    save_file(tensors, partial)
    partial.rename(path)
    return made


def _card(model: VitsModel) -> Card:
    return Card(
        id="english-voices",
        family="VitsModel",
        tasks=["speech"],
        source="recipe:tessera starters train english-voices",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence="mit",
        notice="two voices of even pitch; reads any English, words that are spelled unlike others sometimes wrongly; "
        "its decoder descends from Piper's lessac, whose recordings are licensed for research",
        revision="1",
        scheme="float16",
        voices=VOICES,
        sample_rate=RATE,
        data="Generated sentences (words by frequency from wordfreq, CC BY-SA; parts of speech from lemminflect), read "
        "by Piper's voice en_US-joe-medium (MIT; its recordings are CC0). The decoder began as that voice's, which "
        "Piper fine-tuned from en_US-lessac-medium (MIT; recordings of the Blizzard Challenge 2013, licensed for "
        "research). The second voice is the first at twice the pulses and 1.15 times the formants.",
    )
