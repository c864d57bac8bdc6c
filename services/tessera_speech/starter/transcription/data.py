"""Training data: shards of utterances that are synthesized, degraded and turned into features once, and batches.

Shard `n` follows from the seed and `n` alone, except for the noise of the teacher's breath; it is made when it is first
needed and kept on disk. The teacher tells when each phoneme begins, so that frames have phonemes as labels beside the
utterance's tokens. Knows nothing about the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import ParakeetFeatureExtractor, ParakeetTokenizer

from tessera_speech.starter.espeak import EspeakTeacher
from tessera_speech.starter.transcription import sentences, voices
from tessera_speech.starter.transcription.model import FRAME_S, MELS
from tessera_speech.starter.transcription.neural import NeuralTeacher

UTTERANCES = 512
"""Utterances of one shard."""
EASY_SHARDS = 2
"""Number of first shards whose utterances have one to three words, for which CTC soon finds an alignment."""
FORMANT_SHARDS, NEURAL_SHARDS = 40, 10
"""Number of shards with formant voices, and of the shards with a neural voice that follow them."""
NEURAL_TIMES = 3
"""How many times as often an utterance of a neural voice is drawn as another."""
LONG_SHARE, LONGEST = 0.15, 5
"""Share of the other utterances that have two to five sentences with pauses, and the most sentences; up to about 15
s."""
SUBSAMPLING = 8
HALVES = 2
"""Labels of one output of the encoder, one for each 40 ms."""
WARPS = (0.86, 1.16)
"""Range of the factor by which the frequencies of an utterance are multiplied."""
UNLABELLED = -100
_PHONEMES = (
    "_ n ə t ɪ d s l ð k ɛ m ɹ z w p b v ʌ iː h aɪ f æ a ɒ eɪ uː i ɚ ɐ j ɡ əl dʒ aʊ ɔː ɑː ŋ ʊ oʊ ʃ θ ɜː tʃ iə r əʊ ᵻ "
    "ɛɹ ɔːɹ ɑːɹ e eː ɾ ɔ aɪə ʊɹ oː ɔɪ ʉ ɜ aɪɚ ɪɹ eə ɛə æʊ ɑə ɔə əɪ ʒ aː ʊə ʍ oə ʉː"
)
PHONEMES = tuple(_PHONEMES.split())
"""Labelled phonemes by espeak-ng's names in IPA, `_` for silence; rarer ones have no label."""


@dataclass(frozen=True)
class TranscriptionBatch:
    """A batch of utterances, padded to the longest.

    Args:
        features: log-mel features, float32 [utterances, frames, mels].
        mask: whether a frame belongs to the utterance, bool [utterances, frames].
        tokens: token ids, int64 [utterances, tokens], padded with zeros.
        token_counts: number of tokens of each utterance, int64 [utterances].
        phonemes: labels, int64 [utterances, frames / 8, 2]; `UNLABELLED` where no phoneme is known.
    """

    features: torch.Tensor
    mask: torch.Tensor
    tokens: torch.Tensor
    token_counts: torch.Tensor
    phonemes: torch.Tensor


class ShardPool:
    """The shards of a folder, from which batches are drawn.

    Args:
        folder: folder of the shards.
        seed: seed of all shards.
        extractor: extractor of features.
        tokenizer: tokenizer of the sentences.
    """

    def __init__(
        self, folder: Path, seed: int, extractor: ParakeetFeatureExtractor, tokenizer: ParakeetTokenizer
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._seed = seed
        self._extractor = extractor
        self._tokenizer = tokenizer
        self._teacher: EspeakTeacher | None = None
        self._neural: NeuralTeacher | None = None
        self._shards: list[dict[str, npt.NDArray[Any]]] = []
        self._order = np.zeros((0, 2), dtype=np.int64)

    def require(self, shards: int) -> None:
        """Load or make the first `shards` shards, and keep them in memory."""
        if len(self._shards) >= shards:
            return
        for number in range(len(self._shards), shards):
            self._shards.append(self._load(number))
        places = [
            (end - start, number, index)
            for number, shard in enumerate(self._shards)
            for _ in range(NEURAL_TIMES if number >= FORMANT_SHARDS else 1)
            for index, (start, end) in enumerate(zip(shard["starts"][:-1], shard["starts"][1:], strict=True))
        ]
        self._order = np.array([place[1:] for place in sorted(places)], dtype=np.int64)

    def batch(self, random: np.random.Generator, frames: int) -> TranscriptionBatch:
        """Draw utterances of about the same length, with about `frames` frames of features in all.

        The frequencies of each are warped as by a shorter or longer vocal tract (Jaitly & Hinton 2013), so that there
        are more voices than the teacher has, and some bands and frames are masked (SpecAugment, Park et al. 2019).
        """
        middle = int(random.integers(len(self._order)))
        first, last, longest = middle, middle + 1, self._length(middle)
        while last < len(self._order) and (last + 1 - first) * self._length(last) <= frames:
            longest, last = self._length(last), last + 1
        while first > 0 and (last + 1 - first) * longest <= frames:
            first -= 1
        chosen = self._order[first:last]
        outputs = -(-longest // SUBSAMPLING)
        features = np.zeros((len(chosen), longest, MELS), dtype=np.float32)
        mask = np.zeros((len(chosen), longest), dtype=bool)
        phonemes = np.full((len(chosen), outputs, HALVES), UNLABELLED, dtype=np.int64)
        tokens = []
        for row, (number, index) in enumerate(chosen):
            shard = self._shards[number]
            start, end = shard["starts"][index], shard["starts"][index + 1]
            length = end - start
            made = shard["features"][start:end].astype(np.float32)
            features[row, :length] = _blanked(warped(made, float(random.uniform(*WARPS))), random)
            mask[row, :length] = True
            known = shard["phonemes"][shard["phoneme_starts"][index] : shard["phoneme_starts"][index + 1]]
            phonemes[row, : len(known)] = known
            tokens.append(shard["tokens"][shard["token_starts"][index] : shard["token_starts"][index + 1]])
        counts = np.array([len(row) for row in tokens])
        padded = np.zeros((len(tokens), counts.max()), dtype=np.int64)
        for row, ids in enumerate(tokens):
            padded[row, : len(ids)] = ids
        made = (features, mask, padded, counts, phonemes)
        return TranscriptionBatch(*(torch.from_numpy(array) for array in made))

    def _length(self, place: int) -> int:
        number, index = self._order[place]
        starts = self._shards[number]["starts"]
        return int(starts[index + 1] - starts[index])

    def _load(self, number: int) -> dict[str, npt.NDArray[Any]]:
        path = self._folder / f"shard-{number:03}.safetensors"
        try:
            stored: dict[str, npt.NDArray[Any]] = load_file(path)
        except (FileNotFoundError, SafetensorError):
            shard = self._make(number)
        else:
            return stored
        new = path.with_suffix(".new")
        save_file(shard, new)
        new.replace(path)
        return shard

    def _spoken(self, said: list[str], random: np.random.Generator, *, neural: bool) -> list[voices.Sound]:
        """Speak sentences with one voice."""
        if neural:
            self._neural = self._neural or NeuralTeacher()
            return self._neural.say(said, random)
        self._teacher = self._teacher or EspeakTeacher(voices.invent(self._folder, self._seed))
        manner = voices.trained_manner(random, invented=True)
        return [voices.say(self._teacher, part, manner) for part in said]

    def _make(self, number: int) -> dict[str, npt.NDArray[Any]]:
        random = np.random.default_rng((self._seed, number))
        features: list[npt.NDArray[np.float16]] = []
        phonemes: list[npt.NDArray[Any]] = []
        tokens: list[npt.NDArray[np.int16]] = []
        while len(features) < UTTERANCES:
            easy = number < EASY_SHARDS
            said = [trained_sentence(random, easy=easy)]
            if not easy and random.random() < LONG_SHARE:
                said += [trained_sentence(random, easy=False) for _ in range(random.integers(1, LONGEST))]
            sounds = self._spoken(said, random, neural=number >= FORMANT_SHARDS)
            pauses = random.uniform(0.0, 0.2 if easy else 0.5, size=len(said) + 1) ** 1.5
            sound = voices.joined(sounds, pauses.tolist())
            sentence = " ".join(said)
            ids = np.array(self._tokenizer(sentence)["input_ids"], dtype=np.int16)
            made = self._extractor(
                voices.degraded(sound.samples, random), sampling_rate=voices.RATE, return_tensors="np"
            )
            frames = made["input_features"][0][made["attention_mask"][0]].astype(np.float16)
            outputs = -(-len(frames) // SUBSAMPLING)
            if len(ids) + np.count_nonzero(ids[1:] == ids[:-1]) > outputs:
                continue  # too fast: CTC needs an output for every token, and one between equal tokens
            features.append(frames)
            tokens.append(ids)
            known = sound.phonemes if sounds[0].phonemes else []
            phonemes.append(phoneme_labels(known, outputs, len(sound.samples) / voices.RATE))
        return {
            "features": np.concatenate(features),
            "starts": _starts(features),
            "phonemes": np.concatenate(phonemes),
            "phoneme_starts": _starts(phonemes),
            "tokens": np.concatenate(tokens),
            "token_starts": _starts(tokens),
        }


def trained_sentence(random: np.random.Generator, *, easy: bool) -> str:
    """Draw a training sentence: one of the grammar, or words in any order, but never a held-out one."""
    while True:
        if easy:
            sentence = sentences.scrambled(random, 1, 3)
        elif random.random() < 0.6:
            sentence = sentences.grammatical(random)
        else:
            sentence = sentences.scrambled(random, 2, 9)
        if not sentences.is_held_out(sentence):
            return sentence


def phoneme_labels(phonemes: list[tuple[str, float]], outputs: int, seconds: float) -> npt.NDArray[np.int16]:
    """Labels of the phoneme in the middle of each half of the encoder's outputs, int16 [outputs, 2].

    Without `phonemes` there are no labels. Output `n` of the encoder is centred at `n` times `FRAME_S`, because its
    convolutions pad with one frame in front.
    """
    if not phonemes:
        return np.full((outputs, HALVES), UNLABELLED, dtype=np.int16)
    middles = (np.arange(outputs)[:, None] + (np.arange(HALVES) - 0.5) / HALVES) * FRAME_S
    begins = np.array([second for _, second in phonemes])
    known = {name: index for index, name in enumerate(PHONEMES)}
    names = [known.get(name.replace(":", "ː") or "_", UNLABELLED) for name, _ in phonemes]
    indices = np.searchsorted(begins, middles, side="right") - 1
    labels = np.where(indices < 0, 0, np.array(names)[np.maximum(indices, 0)])
    return np.where(middles > seconds, 0, labels).astype(np.int16)


def warped(features: npt.NDArray[np.float32], factor: float) -> npt.NDArray[np.float32]:
    """Log-mel features [frames, mels] as if all frequencies had been divided by `factor`; on Slaney's mel scale."""
    highest = _mel(np.array(voices.RATE / 2))
    centres = np.arange(1, MELS + 1) / (MELS + 1) * highest
    hertz = np.where(centres < 15, centres * 200 / 3, 1000 * np.exp((centres - 15) * np.log(6.4) / 27))
    places = np.clip(_mel(hertz * factor) / highest * (MELS + 1) - 1, 0, MELS - 1)
    below = np.minimum(places.astype(np.int64), MELS - 2)
    share = (places - below).astype(np.float32)
    return features[:, below] * (1 - share) + features[:, below + 1] * share


def _mel(hertz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(np.maximum(hertz, 1) / 1000) / np.log(6.4))


def _blanked(features: npt.NDArray[np.float32], random: np.random.Generator) -> npt.NDArray[np.float32]:
    for _ in range(2):
        width = int(random.integers(0, 9))
        start = int(random.integers(0, MELS - width))
        features[:, start : start + width] = 0
    for _ in range(1 + len(features) // 150):
        width = int(random.integers(0, 9))
        start = int(random.integers(0, max(1, len(features) - width)))
        features[start : start + width] = 0
    return features


def _starts(parts: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *(len(part) for part in parts)])
