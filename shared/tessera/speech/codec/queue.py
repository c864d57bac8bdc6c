"""Texts that a codec language model synthesizes together: a step is one frame of each, and the windows that are due.

The sequence scheduler says which positions are computed next and where their keys and values are, like for a language
model: a new text joins at the next step, a cancelled one leaves. The audio of a text does not depend on the others: its
codes are drawn with noise of its own, and the state of its codec is its own. Knows nothing about the insides of models,
text or HTTP.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

import torch

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.engine.process import failed
from tessera.errors import InternalError
from tessera.sequence.batch import Chunk
from tessera.sequence.sampling import filters
from tessera.sequence.sampling.noise import gumbel, noise_key
from tessera.sequence.sampling.sampler import GREEDY_BELOW
from tessera.sequence.scheduler import Scheduler
from tessera.speech.codec.csm import CodecLanguageModel
from tessera.speech.codec.request import CodecSpeechRequest
from tessera.wire.engine import FromEngine, Sampling, Synthesize

BATCH_TOKENS = 512
"""Most positions of one step, prompts and frames together."""
GPU_WINDOWS_PER_PASS = 8
"""Windows that the codec decodes in one pass on a GPU. A CPU gains nothing from more than one."""
NOT_FINITE = "the model's output is not finite (overflow)"

logger = logging.getLogger(__name__)


class CodecSpeechQueue:
    """The texts of an engine.

    Args:
        model: the loaded model.
        max_waiting: texts that may wait beside those in flight.
        max_seconds: most seconds of audio of one text.
    """

    def __init__(self, model: CodecLanguageModel, *, max_waiting: int, max_seconds: float) -> None:
        self._model = model
        self._max_seconds = max_seconds
        self._windows_per_pass = GPU_WINDOWS_PER_PASS if model.device.type == "cuda" else 1
        self.scheduler = Scheduler(
            PrefixCache(PageAllocator(model.pages, model.page_size)),
            max_batch_tokens=max(BATCH_TOKENS, model.max_streams),
            max_running=model.max_streams,
            # The engine bounds the texts, of which a full room still takes some; the next sentence of one that it holds
            # is never refused here.
            max_waiting=2 * max_waiting,
            context_length=model.context_length,
        )
        self._texts: dict[str, CodecSpeechRequest] = {}
        self.synthesized_s = 0.0
        """Seconds of audio since the start."""

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def running(self) -> int:
        """Texts of which a frame has been computed."""
        return sum(text.started for text in self._texts.values())

    def metrics(self) -> dict[str, float]:
        """Metrics of its pages, under the names of the sequence engine."""
        allocator, cache = self.scheduler.allocator, self.scheduler.cache
        return {
            "kv_pages_capacity": allocator.pages,
            "kv_pages_used": allocator.used - cache.idle,
            "preemptions_total": self.scheduler.preemptions,
        }

    def tenants(self) -> Iterator[str]:
        """The tenant of each text."""
        return (text.message.tenant for text in self._texts.values())

    def submit(self, message: Synthesize) -> None:
        """Queue a text. Raises as `CodecSpeechRequest` and `Scheduler.check` do."""
        text = CodecSpeechRequest(message, self._model, max_seconds=self._max_seconds)
        sequence = text.begin_sentence()
        if sequence is not None:
            self.scheduler.submit(sequence)
        self._texts[message.request_id] = text

    def cancel(self, request_id: str) -> None:
        """Forget a text and free its pages."""
        text = self._texts.pop(request_id, None)
        if text is not None and text.sequence is not None:
            self.scheduler.remove(text.sequence)

    def step(self) -> list[FromEngine]:
        """Compute a frame of every text in flight, and decode the windows that are due."""
        return [*self._begin_sentences(), *self._compute(), *self._decode_due()]

    def _begin_sentences(self) -> list[FromEngine]:
        """Begin the next sentences; a sentence of silence alone is answered at once."""
        answers: list[FromEngine] = []
        for text in list(self._texts.values()):
            while text.wants_sentence:
                try:
                    before, sequence = text.sequence, text.begin_sentence()
                    if sequence is not None:
                        if before is not None:
                            self.scheduler.remove(before)
                        self.scheduler.submit(sequence)
                except Exception as error:  # noqa: BLE001 - it is this request's answer
                    answers.append(self._fail(text, error))
                    break
                if text.wants_sentence:
                    answers.append(self._collect(text, torch.zeros(0), 0))
        return answers

    def _compute(self) -> list[FromEngine]:
        batch = self.scheduler.schedule()
        if not batch.chunks:
            return []
        try:
            ending, codes_RK = self._model.run(batch, self._pick)
        except (RuntimeError, ValueError, IndexError) as error:
            if "CUDA error" in str(error):  # the context of the device is lost: only a new process helps
                raise
            logger.exception("a step of %d texts failed", len(batch.chunks))
            answers: list[FromEngine] = [
                self._fail(text, error, spoiled=True) for chunk in batch.chunks if (text := self._request_of(chunk))
            ]
            self.scheduler.clear_cache()  # half of the step may be in it
            return answers
        self.scheduler.advance(batch)
        answers = []
        for chunk, codes in zip(ending, codes_RK.tolist(), strict=True):
            text = self._request_of(chunk)
            assert text is not None
            if codes[0] < 0:
                answers.append(self._fail(text, InternalError(NOT_FINITE), spoiled=True))
            else:
                text.add_frame(tuple(codes))
        return answers

    def _pick(self, logits_RV: torch.Tensor, chunks: list[Chunk], codebook: int) -> torch.Tensor:
        """Codes [R] of one codebook: the likeliest ones, or drawn with noise of each text's own."""
        sampling = self._model.first_sampling if codebook == 0 else self._model.depth_sampling
        if sampling.temperature < GREEDY_BELOW:
            return logits_RV.argmax(dim=-1)
        keys: list[int] = []
        for chunk in chunks:
            text = self._request_of(chunk)
            assert text is not None
            keys.append(noise_key(text.message.seed, text.drawn * self._model.codebooks + codebook))
        return _draw(logits_RV / sampling.temperature, sampling, keys)

    def _decode_due(self) -> list[FromEngine]:
        """Decode the windows that are due, windows of one length together."""
        due: defaultdict[int, list[CodecSpeechRequest]] = defaultdict(list)
        answers: list[FromEngine] = []
        for text in list(self._texts.values()):
            if text.frames_due:
                due[text.frames_due].append(text)
            elif text.has_unreported_end:
                answers.append(self._collect(text, torch.zeros(0), 0))
        for frames, texts in due.items():
            for first in range(0, len(texts), self._windows_per_pass):
                answers += self._decode_windows(texts[first : first + self._windows_per_pass], frames)
        return answers

    def _decode_windows(self, texts: list[CodecSpeechRequest], frames: int) -> list[FromEngine]:
        """Decode windows of one length together. A fault fails their texts, whose streams may hold half of the pass."""
        try:
            codes_BKF = torch.tensor([text.window() for text in texts]).transpose(1, 2)
            waves = self._model.codec.decode([text.stream for text in texts], codes_BKF)
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            return [self._fail(text, error) for text in texts]
        return [self._collect(text, wave, frames) for text, wave in zip(texts, waves, strict=True)]

    def _collect(self, text: CodecSpeechRequest, samples: torch.Tensor, frames: int) -> FromEngine:
        answer = text.collect(samples, frames)
        self.synthesized_s += answer.samples.shape[0] / self._model.codec.sample_rate
        if answer.last:
            self.cancel(text.message.request_id)
        return answer

    def _request_of(self, chunk: Chunk) -> CodecSpeechRequest | None:
        return self._texts.get(chunk.request.request_id)

    def _fail(self, text: CodecSpeechRequest, error: Exception, *, spoiled: bool = False) -> FromEngine:
        self._texts.pop(text.message.request_id, None)
        if text.sequence is not None:
            self.scheduler.remove(text.sequence, invalidate=spoiled)
        return failed(text.message.request_id, error)


def _draw(logits_RV: torch.Tensor, sampling: Sampling, keys: list[int]) -> torch.Tensor:
    """Codes [R] drawn from logits after temperature, by the Gumbel-max trick."""
    samplings = [sampling] * len(keys)
    if filters.fits_candidates(sampling):
        ids_RK, kept_RK, complete_R = filters.filter_candidates(logits_RV, samplings)
        if bool(complete_R.all()):
            chosen_R1 = (kept_RK + gumbel(keys, ids_RK)).argmax(dim=-1, keepdim=True)
            return ids_RK.gather(1, chosen_R1)[:, 0]
    ids_1V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)[None]
    return (filters.filter_vocabulary(logits_RV, samplings) + gumbel(keys, ids_1V)).argmax(dim=-1)
