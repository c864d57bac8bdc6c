"""Speakers are told apart, known ones have their names, and every word has the speaker who said it."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tessera.wire.audio import VADConfig
from tessera_speech.recordings.diarization import KnownSpeakers, SpeakerTurns, find_speaker_turns
from tessera_speech.recordings.speakers import ClusteringDiarizer, cepstra
from tessera_speech.recordings.voice_activity import RATE, VoiceActivityModel, speech_spans
from tessera_speech.starter.espeak import EspeakTeacher
from tessera_speech.starter.transcription import sentences, voices

TRANSCRIPTION = "tiny-random-transcription"
MAN, WOMAN, OTHER = "en-us+m3", "en-us+f2", "en-us+m7"
TURN_PAUSE = np.zeros(RATE // 2, dtype=np.float32)


class Talk:
    """A conversation whose turns are known."""

    def __init__(self, speakers: str, seed: int = 0) -> None:
        teacher, random = EspeakTeacher(), np.random.default_rng(seed)
        by = {"m": MAN, "w": WOMAN, "o": OTHER}
        self.turns: list[tuple[int, int]] = []
        parts: list[np.ndarray[Any, Any]] = [TURN_PAUSE]
        at = TURN_PAUSE.size
        for speaker in speakers:
            sound = voices.say(teacher, sentences.grammatical(random), voices.Manner(by[speaker])).samples
            self.turns.append((at, at + sound.size))
            parts += [sound, TURN_PAUSE]
            at += sound.size + TURN_PAUSE.size
        self.samples = np.concatenate(parts)

    def speech(self, turn: int) -> np.ndarray[Any, Any]:
        first, end = self.turns[turn]
        return self.samples[first:end]


@pytest.mark.parametrize(
    ("speakers", "labels"),
    [
        ("mwmmwwmw", [0, 1, 0, 0, 1, 1, 0, 1]),
        ("mowwomm", [0, 1, 2, 2, 1, 0, 0]),
        ("wwww", [0, 0, 0, 0]),
        ("w", [0]),
        ("", []),
    ],
)
def test_voices_that_sound_different_are_told_apart(speakers: str, labels: list[int]) -> None:
    talk = Talk(speakers)
    assert ClusteringDiarizer().speakers(talk.samples, talk.turns) == labels


def test_loudness_and_noise_are_no_speakers() -> None:
    talk = Talk("mwmw")
    changed = talk.samples.copy()
    for first, end in talk.turns[::3]:
        changed[first:end] *= 0.2
    noise = 1e-3 * np.random.default_rng(0).standard_normal(changed.size).astype(np.float32)
    assert ClusteringDiarizer().speakers(changed + noise, talk.turns) == [0, 1, 0, 1]


def test_a_short_turn_belongs_to_who_sounds_like_it() -> None:
    talk = Talk("mwmw")
    turns = list(talk.turns)
    first, _ = turns[2]
    turns[2] = (first + RATE // 4, first + RATE // 2)
    assert ClusteringDiarizer().speakers(talk.samples, turns) == [0, 1, 0, 1]
    assert ClusteringDiarizer().speakers(talk.samples, [(0, 100), *talk.turns])[1:] == [0, 1, 0, 1]


def test_known_speakers_have_their_numbers() -> None:
    talk, before = Talk("mwmw", seed=1), Talk("ww", seed=2)
    assert ClusteringDiarizer().speakers(talk.samples, talk.turns, [before.speech(0)]) == [1, 0, 1, 0]
    assert ClusteringDiarizer().speakers(talk.samples, talk.turns[::2], [before.speech(0)]) == [1, 1]


def test_what_is_silent_has_no_cepstra() -> None:
    assert cepstra(np.zeros(100, dtype=np.float32)).shape == (0, 16)
    assert np.isfinite(cepstra(np.zeros(RATE, dtype=np.float32))).all()


def test_turns_found_in_a_recording_have_names() -> None:
    talk = Talk("mwwm")
    speech = VoiceActivityModel().probabilities(talk.samples)
    turns = find_speaker_turns(talk.samples, speech, ClusteringDiarizer(), KnownSpeakers([], []))
    assert [turns.speaker_at((first + end) / 2 / RATE) for first, end in talk.turns] == ["A", "B", "B", "A"]
    assert len(turns.names) == len(
        speech_spans(speech, talk.samples.size, VADConfig(silence_duration_ms=300, prefix_padding_ms=0))
    )


def test_words_between_turns_go_to_the_nearer_one() -> None:
    turns = SpeakerTurns([1.0, 5.0], [3.0, 8.0], ["A", "B"])
    assert [turns.speaker_at(second) for second in (0.0, 2.0, 3.9, 4.1, 6.0, 9.0)] == ["A", "A", "A", "B", "B", "B"]
    words = ["a", "b", "c"]
    assert turns.split_by_speaker(words, [(1, 2), (2.5, 3), (5, 6)]) == [("A", ["a", "b"]), ("B", ["c"])]
    assert SpeakerTurns([], [], []).speaker_at(1.0) == "A"


# ---- through the service; the model writes noise, at times of its own


def reference(samples: np.ndarray[Any, Any], recording: Any) -> str:
    return "data:audio/wav;base64," + base64.b64encode(recording("wav", samples)).decode()


def test_a_transcript_names_its_speakers(vad_service: Any, recording: Any) -> None:
    talk = Talk("mwmw")
    known = np.tile(Talk("w", seed=5).speech(0), 4)[: 5 * RATE]
    with openai.OpenAI(base_url=f"{vad_service.url}/v1", api_key="none", max_retries=0) as sdk:
        file = ("talk.wav", recording("wav", talk.samples))
        answer: Any = sdk.audio.transcriptions.create(
            model=TRANSCRIPTION,
            file=file,
            language="en",
            response_format="diarized_json",
            chunking_strategy="auto",
            known_speaker_names=["Ann"],
            known_speaker_references=[reference(known, recording)],
        )
        assert (answer.task, answer.duration) == ("transcribe", pytest.approx(talk.samples.size / RATE, abs=0.01))
        assert answer.segments
        assert {segment.speaker for segment in answer.segments} <= {"Ann", "A"}
        assert answer.text == "".join(segment.text for segment in answer.segments).strip()
        assert len({segment.id for segment in answer.segments}) == len(answer.segments)
        for segment in answer.segments:
            assert segment.type == "transcript.text.segment"
            assert 0 <= segment.start <= segment.end <= answer.duration
        streamed = list(
            sdk.audio.transcriptions.create(
                model=TRANSCRIPTION, file=file, language="en", response_format="diarized_json", stream=True
            )
        )
    kinds = [event.type for event in streamed]
    assert kinds[-1] == "transcript.text.done"
    assert {"transcript.text.delta", "transcript.text.segment"} == set(kinds[:-1])
    assert streamed[-1].text == "".join(event.delta for event in streamed if event.type == "transcript.text.delta")
    segments = [event.id for event in streamed if event.type == "transcript.text.segment"]
    assert {event.segment_id for event in streamed if event.type == "transcript.text.delta"} <= set(segments)


@pytest.mark.parametrize(
    ("references", "says"),
    [
        ([], "as many of both"),
        (["https://example.com/ann.wav"], "must be a data URL"),
        (["data:audio/wav;base64,????"], "is not base64"),
        (["data:audio/wav;base64," + base64.b64encode(b"no sound").decode()], "is not a recording"),
        (["short"], "2 to 10 are needed"),
    ],
)
def test_references_that_are_none_are_refused(
    references: list[str], says: str, vad_service: Any, recording: Any, melody: Any
) -> None:
    given = [reference(melody(1.0), recording) if one == "short" else one for one in references]
    fields = {
        "model": TRANSCRIPTION,
        "response_format": "diarized_json",
        "known_speaker_names[]": "Ann",
        **({"known_speaker_references[]": given[0]} if given else {}),
    }
    answer = httpx.post(
        f"{vad_service.url}/v1/audio/transcriptions",
        data=fields,
        files={"file": ("a.wav", recording("wav", melody(1.0)))},
    )
    error = json.loads(answer.content)["error"]
    assert (answer.status_code, error["param"]) == (400, "known_speaker_references")
    assert says in error["message"]
