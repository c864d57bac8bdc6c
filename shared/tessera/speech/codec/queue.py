"""Texts that a codec language model speaks, all at once: a step is a frame of each, and the windows that are due.

The sequence scheduler says whose positions are computed next and where their keys and values are, as it does for texts:
who comes joins the next step, who is cancelled is gone from it. What a text sounds like does not depend on the others:
its codes are drawn with noise of its own, its codec's state is its own. Does not know models' insides, text or HTTP.
"""

from __future__ import annotations

import logging
from collections import defaultdict

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
"""Positions of one step, prompts and frames together."""
GPU_WINDOWS_PER_PASS = 8
"""Windows that the codec decodes in one pass. A CPU has no gain from more than one."""
NOT_FINITE = "the model's output is not finite (overflow)"

logger = logging.getLogger(__name__)


class CodecSpeechQueue:
    """All texts of an engine.

    Args:
        model: what they are spoken with.
        max_waiting: texts that may wait beside those in work.
        max_seconds: of audio that one text may make.
    """

    def __init__(self, model: CodecLanguageModel, *, max_waiting: int, max_seconds: float) -> None:
        self._model = model
        self._max_seconds = max_seconds
        self._together = GPU_WINDOWS_PER_PASS if model.device.type == "cuda" else 1
        self.scheduler = Scheduler(
            PrefixCache(PageAllocator(model.pages, model.page_size)),
            max_batch_tokens=max(BATCH_TOKENS, model.max_streams),
            max_running=model.max_streams,
            max_waiting=max_waiting,
            context_length=model.context_length,
        )
        self._texts: dict[str, CodecSpeechRequest] = {}
        self.synthesized_s = 0.0

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def running(self) -> int:
        """Texts of which something was made."""
        return sum(text.started for text in self._texts.values())

    def metrics(self) -> dict[str, float]:
        """Of its pages, as the sequence engine names them."""
        allocator, cache = self.scheduler.allocator, self.scheduler.cache
        return {
            "kv_pages_capacity": allocator.pages,
            "kv_pages_used": allocator.used - cache.idle,
            "preemptions_total": self.scheduler.preemptions,
        }

    def submit(self, message: Synthesize) -> None:
        """Queue a text. Raises as `CodecSpeechRequest` and `Scheduler.check` do."""
        text = CodecSpeechRequest(message, self._model, max_seconds=self._max_seconds)
        sequence = text.begin()
        if sequence is not None:
            self.scheduler.submit(sequence)
        self._texts[message.request_id] = text

    def cancel(self, request_id: str) -> None:
        """Forget a text and free its pages."""
        text = self._texts.pop(request_id, None)
        if text is not None and text.sequence is not None:
            self.scheduler.remove(text.sequence)

    def step(self) -> list[FromEngine]:
        """A frame of every text in work, and the windows that are due."""
        return [*self._go_on(), *self._compute(), *self._decode()]

    def _go_on(self) -> list[FromEngine]:
        """Begin the next sentences; those without words are told at once."""
        answers: list[FromEngine] = []
        for text in list(self._texts.values()):
            while text.wants_turn:
                try:
                    before, sequence = text.sequence, text.begin()
                    if sequence is not None:
                        if before is not None:
                            self.scheduler.remove(before)
                        self.scheduler.submit(sequence)
                except Exception as error:  # noqa: BLE001 - it is this request's answer
                    answers.append(self._fail(text, error))
                    break
                if text.wants_turn:
                    answers.append(self._tell(text, torch.zeros(0), 0))
        return answers

    def _compute(self) -> list[FromEngine]:
        batch = self.scheduler.schedule()
        if not batch.chunks:
            return []
        try:
            ending, codes_RK = self._model.run(batch, self._pick)
        except (RuntimeError, ValueError, IndexError) as error:
            if "CUDA error" in str(error):  # the device's context is lost: only a new process helps
                raise
            logger.exception("a step of %d texts failed", len(batch.chunks))
            answers: list[FromEngine] = [
                self._fail(text, error, spoiled=True) for chunk in batch.chunks if (text := self._text_of(chunk))
            ]
            self.scheduler.clear_cache()  # half of the step may be in it
            return answers
        self.scheduler.advance(batch)
        answers = []
        for chunk, codes in zip(ending, codes_RK.tolist(), strict=True):
            text = self._text_of(chunk)
            assert text is not None
            if codes[0] < 0:
                answers.append(self._fail(text, InternalError(NOT_FINITE), spoiled=True))
            else:
                text.take(tuple(codes))
        return answers

    def _pick(self, logits_RV: torch.Tensor, chunks: list[Chunk], codebook: int) -> torch.Tensor:
        """Codes [R] of one codebook: the likeliest, or drawn with each text's own noise."""
        sampling = self._model.first_sampling if codebook == 0 else self._model.depth_sampling
        if sampling.temperature < GREEDY_BELOW:
            return logits_RV.argmax(dim=-1)
        keys: list[int] = []
        for chunk in chunks:
            text = self._text_of(chunk)
            assert text is not None
            keys.append(noise_key(text.message.seed, text.drawn * self._model.codebooks + codebook))
        return _drawn(logits_RV / sampling.temperature, sampling, keys)

    def _decode(self) -> list[FromEngine]:
        """The windows that are due, those of one length together."""
        due: defaultdict[int, list[CodecSpeechRequest]] = defaultdict(list)
        answers: list[FromEngine] = []
        for text in list(self._texts.values()):
            if text.due:
                due[text.due].append(text)
            elif text.untold:
                answers.append(self._tell(text, torch.zeros(0), 0))
        for frames, texts in due.items():
            for first in range(0, len(texts), self._together):
                answers += self._sound(texts[first : first + self._together], frames)
        return answers

    def _sound(self, texts: list[CodecSpeechRequest], frames: int) -> list[FromEngine]:
        """Decode windows of one length together. A fault ends their texts, whose streams may have remembered half."""
        try:
            codes_BKF = torch.tensor([text.window() for text in texts]).transpose(1, 2)
            waves = self._model.codec.decode([text.stream for text in texts], codes_BKF)
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            return [self._fail(text, error) for text in texts]
        return [self._tell(text, wave, frames) for text, wave in zip(texts, waves, strict=True)]

    def _tell(self, text: CodecSpeechRequest, samples: torch.Tensor, frames: int) -> FromEngine:
        answer = text.tell(samples, frames)
        self.synthesized_s += answer.samples.shape[0] / self._model.codec.sample_rate
        if answer.last:
            self.cancel(text.message.request_id)
        return answer

    def _text_of(self, chunk: Chunk) -> CodecSpeechRequest | None:
        return self._texts.get(chunk.request.request_id)

    def _fail(self, text: CodecSpeechRequest, error: Exception, *, spoiled: bool = False) -> FromEngine:
        self._texts.pop(text.message.request_id, None)
        if text.sequence is not None:
            self.scheduler.remove(text.sequence, invalidate=spoiled)
        return failed(text.message.request_id, error)


def _drawn(logits_RV: torch.Tensor, sampling: Sampling, keys: list[int]) -> torch.Tensor:
    """Codes [R] drawn from logits after temperature, by Gumbel's trick."""
    samplings = [sampling] * len(keys)
    if filters.fits_candidates(sampling):
        ids_RK, kept_RK, complete_R = filters.filter_candidates(logits_RV, samplings)
        if bool(complete_R.all()):
            chosen_R1 = (kept_RK + gumbel(keys, ids_RK)).argmax(dim=-1, keepdim=True)
            return ids_RK.gather(1, chosen_R1)[:, 0]
    ids_1V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)[None]
    return (filters.filter_vocabulary(logits_RV, samplings) + gumbel(keys, ids_1V)).argmax(dim=-1)
