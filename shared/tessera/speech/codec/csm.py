"""A codec language model of CSM's class: text tokens and frames of audio codes in, next frames out, and its codec.

The backbone runs ragged batches over our paged cache, like a text model. Its input at a position is the embedding of a
text token or the sum of the embeddings of a frame's codes. The depth decoder then runs over all frames of the step at
once. The caller picks codes from logits. Knows nothing about texts, random numbers or file formats.

Shapes: T positions of a step, R frames that the step ends with, K codebooks, V codes of a codebook, C hidden size.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import CsmForConditionalGeneration

from tessera.cache.transfers import Copy
from tessera.errors import ModelLoadError
from tessera.models import attention
from tessera.models.fusion import fuse
from tessera.models.loading import load_pretrained
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.step_inputs import attention_batch
from tessera.speech.codec.csm_depth import DepthDecoder
from tessera.speech.codec.mimi import StreamingCodec
from tessera.speech.codec.voices import RecordedVoice, SequenceEntry, load_recorded_voices
from tessera.tokenizer.model_files import number, read_object_if_there
from tessera.tokenizer.spoken_turns import SPEAKERS, SpokenTurns
from tessera.wire.engine import Sampling
from tessera.wire.models import Card

KIND = "csm"
"""`model_type` of such models."""
PAGE_SIZE = 16
"""Positions of a page of the backbone's KV cache."""
_DEFAULT_TOP_K = 50
"""Transformers' default, for a model whose settings have none."""

logger = logging.getLogger(__name__)
CodePicker = Callable[[torch.Tensor, list[Chunk], int], torch.Tensor]
"""(logits [R, V], the chunk of each row, index of the codebook) → codes [R]."""


@dataclass
class SequenceEntries:
    """The entry at each position of a sequence: a text token, or the codes of a frame. The `media` of a request."""

    entries: list[SequenceEntry] = field(default_factory=list)

    @staticmethod
    def identify(entry: SequenceEntry) -> int:
        """An integer that stands for the entry in the prefix cache: equal for equal entries, negative for frames."""
        if isinstance(entry, int):
            return entry
        digest = hashlib.blake2b(b"".join(code.to_bytes(4, "little") for code in entry), digest_size=7)
        return -int.from_bytes(digest.digest(), "big") - 2


class CodecLanguageModel:
    """The loaded model with its paged cache.

    Args:
        model: Transformers' model in eval mode on its device, its backbone on our attention.
        card: completed with what the configuration says.
        directory: directory of the model, for its tokenizer, recorded voices and sampling.
        kv_cache_bytes: most bytes for keys and values of the backbone.
        max_streams: texts synthesized at once.
    """

    def __init__(self, model: Any, card: Card, directory: Path, *, kv_cache_bytes: int, max_streams: int) -> None:
        config = model.config
        self.model = model
        self.device: torch.device = model.device
        self.codec = StreamingCodec(model.codec_model)
        self.codebooks = int(config.num_codebooks)
        self.text_vocabulary = int(config.text_vocab_size)
        self.end_code = _single(config.codebook_eos_token_id, directory)
        self.max_streams = max_streams
        self.page_size = PAGE_SIZE
        self.first_sampling, self.depth_sampling = load_sampling(directory)
        layers = attention.probe(model)
        logger.info("fused: %s", fuse(model))
        self.depth = DepthDecoder(model.depth_decoder, max_streams)
        page_bytes = attention.bytes_per_token(layers, model.dtype) * PAGE_SIZE
        wanted = max_streams * -(-self.context_length // PAGE_SIZE)
        self.pages = max(1, min(wanted, kv_cache_bytes // page_bytes))
        self._caches = attention.make_caches(
            layers, pages=self.pages, page_size=PAGE_SIZE, dtype=model.dtype, device=self.device
        )
        attention.attach_caches(layers, self._caches)
        self.voices = load_recorded_voices(
            directory, SpokenTurns(directory), self.codec, self.codebooks, self.end_frame
        )
        names = card.voices or [*self.voices, *(f"speaker-{number}" for number in range(SPEAKERS))]
        self.card = msgspec.structs.replace(
            card,
            voices=names,
            sample_rate=self.codec.sample_rate,
            tasks=["speech"],
            context_length=min(self.context_length, self.pages * PAGE_SIZE),
        )
        self.memory = {
            "kv_cache_bytes": self.pages * page_bytes,
            "depth_cache_bytes": self.depth.cache_bytes,
            "codec_bytes": max_streams * self.codec.stream_bytes,
        }
        logger.info("memory beside the weights: %s", self.memory)

    @property
    def context_length(self) -> int:
        """Most positions that the model was trained for."""
        return int(self.model.config.max_position_embeddings)

    @property
    def end_frame(self) -> tuple[int, ...]:
        """The frame that ends a turn of the conversation."""
        return (self.end_code,) * self.codebooks

    @property
    def frame_s(self) -> float:
        """Seconds of audio of a frame."""
        return self.codec.hop / self.codec.sample_rate

    def voice(self, index: int) -> RecordedVoice:
        """The entries before the turns of one of the card's voices; none for a voice that is a speaker's number."""
        return self.voices.get(self.card.voices[index], RecordedVoice([]))

    @torch.inference_mode()
    def run(self, batch: Batch, pick: CodePicker) -> tuple[list[Chunk], torch.Tensor]:
        """Compute the chunks of a batch, and the next frame after each chunk that completes its request's positions.

        Args:
            batch: requests whose `media` are `SequenceEntries`.
            pick: picks codes from logits.

        Returns:
            The chunks that complete, and their codes [R, K] on the CPU; a row of -1 where logits were not finite.
        """
        self._copy(batch)
        chunks = batch.chunks
        positions = [p for chunk in chunks for p in range(chunk.start, chunk.start + chunk.count)]
        batched = attention_batch(chunks, self.page_size, self.device)
        hidden_1TC = self.model.backbone_model(
            inputs_embeds=self._embedded(chunks),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            tessera_batch=batched,
        ).last_hidden_state
        ending: list[Chunk] = []
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += chunk.count
            if chunk.completes:
                ending.append(chunk)
                rows.append(end - 1)
        if not ending:
            return [], torch.empty(0, self.codebooks, dtype=torch.int64)
        hidden_RC = hidden_1TC[0, rows]
        finite_R = torch.isfinite(hidden_RC).all(dim=-1)

        def pick_checked(logits_RV: torch.Tensor, codebook: int) -> torch.Tensor:
            nonlocal finite_R
            finite_R = finite_R & torch.isfinite(logits_RV).all(dim=-1)
            # A codebook has more codes here than in the codec, which has no audio for the others.
            return pick(logits_RV[:, : self.codec.codes].nan_to_num(), ending, codebook)

        first_R = pick_checked(self.model.lm_head(hidden_RC).float(), 0)
        codes_RK = self.depth.frames(hidden_RC, first_R, pick_checked)
        return ending, codes_RK.masked_fill(~finite_R[:, None], -1).cpu()

    def _embedded(self, chunks: list[Chunk]) -> torch.Tensor:
        """Input of the backbone, [1, T, C]."""
        entries: list[SequenceEntry] = []
        for chunk in chunks:
            entries += chunk.request.media.entries[chunk.start : chunk.start + chunk.count]
        text = [row for row, entry in enumerate(entries) if isinstance(entry, int)]
        frames = [row for row, entry in enumerate(entries) if not isinstance(entry, int)]
        embedded_TC = torch.empty(
            len(entries), self.model.config.hidden_size, device=self.device, dtype=self.model.dtype
        )
        if text:
            ids = torch.tensor([entries[row] for row in text], device=self.device)
            embedded_TC[text] = self.model.embed_text_tokens(ids)
        if frames:
            codes_1NK = torch.tensor([[entries[row] for row in frames]], device=self.device)
            embedded_TC[frames] = self.model.backbone_model.embed_tokens(codes_1NK)[0]
        return embedded_TC[None]

    def _copy(self, batch: Batch) -> None:
        """Copy pages as the batch asks; there is no tier but the device."""
        for transfer in batch.transfers:
            assert isinstance(transfer, Copy)
            for cache in self._caches:
                for tensor in cache.tensors:
                    tensor[transfer.target] = tensor[transfer.source]


def load_codec_language_model(
    directory: Path, card: Card, *, device: torch.device, kv_cache_bytes: int, max_streams: int
) -> CodecLanguageModel:
    """Load a model of CSM's class in float32.

    Raises:
        ModelLoadError: pickled, missing or damaged weights, a codec that cannot decode a stream, voices without a file.
    """
    attention.register()
    parts = {"": attention.NAME, "depth_decoder_config": "sdpa", "codec_config": "sdpa"}
    model = load_pretrained(
        CsmForConditionalGeneration, directory, device=device, dtype=torch.float32, attn_implementation=parts
    )
    return CodecLanguageModel(model, card, directory, kv_cache_bytes=kv_cache_bytes, max_streams=max_streams)


def make_sequence(request_id: str, entries: list[SequenceEntry], *, context: int, tenant: str = "") -> SequenceRequest:
    """A request of the sequence scheduler for `entries`, which may grow to `context` positions."""
    return SequenceRequest(
        request_id,
        [SequenceEntries.identify(entry) for entry in entries],
        Sampling(max_tokens=context - len(entries)),
        media=SequenceEntries(list(entries)),
        tenant=tenant,
    )


def extend_sequence(request: SequenceRequest, entries: list[SequenceEntry]) -> None:
    """Append entries to those of a request."""
    for entry in entries:
        request.media.entries.append(entry)
        request.append(SequenceEntries.identify(entry))


def load_sampling(directory: Path) -> tuple[Sampling, Sampling]:
    """Sampling of the first code and of the other codes of a frame, from `generation_config.json`.

    Raises:
        ModelLoadError: the file is damaged.
    """
    path = directory / "generation_config.json"
    values = read_object_if_there(path)
    return _sampling(values, "", path), _sampling(values, "depth_decoder_", path)


def _sampling(values: dict[str, Any], prefix: str, path: Path) -> Sampling:
    def value(name: str, default: float) -> float:
        found = number(values, prefix + name, path)
        return default if found is None else found

    draws = bool(values.get(f"{prefix}do_sample"))
    return Sampling(
        max_tokens=1,
        temperature=value("temperature", 1.0) if draws else 0.0,
        top_k=int(value("top_k", _DEFAULT_TOP_K)),
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
    )


def _single(token: int | list[int] | None, directory: Path) -> int:
    if not isinstance(token, int):
        raise ModelLoadError(f"{directory}: `codebook_eos_token_id` must be one number, not {token!r}")
    return token
