"""Running a batch of sequences: from chunks to logits, through Transformers' model with our attention.

Does not know scheduling or sampling: it computes what a `Batch` says and returns values.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Literal

import torch

from tessera.cache.transfers import Copy, Offload, Transfer
from tessera.device.hardware import Device, free_bytes
from tessera.errors import ModelLoadError
from tessera.models import attention
from tessera.models.decoders import experts_stored_as, load_decoder, require_attention_only
from tessera.models.experts import replace_experts
from tessera.models.fusion import FusionReport, fuse
from tessera.models.quantized import Scheme, quantize
from tessera.sequence.batch import Batch, Chunk, StepOutput, TopLogit
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.calibration import Calibration, calibrate, load_or_calibrate
from tessera.sequence.runner.compiled.decoder import (
    CompiledDecoder,
    Examination,
    compile_decoder,
    examine,
    spared_threads,
)
from tessera.sequence.runner.cpu_threads import ThreadShare
from tessera.sequence.runner.decode_graphs import Capture, CudaCapture, DecodeGraphs, capture_graphs, graph_bytes
from tessera.sequence.runner.image_encoder import ImageEncoder
from tessera.sequence.runner.step_inputs import StaticInputs, StepInputs, fresh_inputs
from tessera.wire.engine import Sampling

logger = logging.getLogger(__name__)

CALIBRATED = 1024
"""Tokens that are run to find outlier inputs before weights are quantized."""
LARGE = 50_000_000
"""Weights of a model from which on `auto` keeps them in 8 bits: smaller ones are fast anyway, and lose more by it."""
STORED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""What keys and values are stored as, by the setting `kv_cache_dtype`; else as they are computed."""
KeyValueType = Literal["auto", "computed", "int8", "fp8"]


class SequenceRunner:
    """A loaded decoder with its paged cache.

    Args:
        directory: of the model.
        device: where it runs.
        page_size: token slots of a page.
        kv_cache_bytes: memory for pages.
        host_cache_bytes: memory on the host for pages that leave the device.
        fused: whether layers that read the same input are computed at once.
        weights: the scheme of linear layers.
        kv_cache_dtype: what keys and values are kept as.
        dummy: whether weights are random.
        graph_rows: most sequences of a decode step that runs as a graph, padded to one of a few sizes. 0: none does.
        capture: makes the graphs; CUDA's when not given.
    """

    def __init__(
        self,
        directory: Path,
        device: Device,
        *,
        page_size: int,
        kv_cache_bytes: int,
        host_cache_bytes: int = 0,
        fused: bool = True,
        weights: Literal["auto", "stored"] | Scheme = "stored",
        kv_cache_dtype: KeyValueType = "auto",
        dummy: bool = False,
        graph_rows: int = 0,
        capture: Capture | None = None,
    ) -> None:
        started = time.perf_counter()
        self.device = device
        self.asynchronous = device.place.type == "cuda"
        self.page_size = page_size
        self.model = load_decoder(directory, device=device.place, dtype=device.dtype, dummy=dummy)
        loaded = time.perf_counter()
        layers = attention.probe(self.model)
        require_attention_only(self.model, layers, directory)
        self.fusion = fuse(self.model) if fused else FusionReport({})
        logger.info("fused: %s", self.fusion)
        self.encoder = ImageEncoder.of(self.model)
        on_cpu = device.place.type == "cpu"
        weights, stored, examined = self._choose(layers, weights, kv_cache_dtype)
        self._compiled: CompiledDecoder | None = None
        self._graphs: DecodeGraphs | None = None
        self._graph_rows = graph_rows
        self.threads = ThreadShare(torch.get_num_threads() if on_cpu else 1, torch.set_num_threads)
        if graph_rows:
            capture = CudaCapture(device.place) if capture is None else capture
            kv_cache_bytes = self._beside_graphs(layers, stored, kv_cache_bytes, capture)
        room = (kv_cache_bytes, host_cache_bytes)
        self._keep(layers, stored, *room)
        found = Calibration({}, [])
        if weights == "int8":
            settings = f"{CALIBRATED} tokens, fused: {fused}, keys: {stored}"
            found = self._find() if dummy else load_or_calibrate(directory, settings, self._find)
        if weights != "stored":
            logger.info("in %s: %s", weights, quantize(self.model, weights, found.inputs))
        # On a CPU Transformers' own grouped products are the faster ones.
        if not on_cpu or weights not in {"stored", "int8"}:
            scheme = experts_stored_as(directory) if weights == "stored" else weights
            logger.info("experts in %s: %s", scheme, replace_experts(self.model, scheme))
        if weights == "int8" and on_cpu:
            different = examined.reason
            if not different:
                order_D = examined.order_D
                self._compiled, different = compile_decoder(self.model, layers, self.caches, found.keys, order_D)
            logger.info("compiled: %s", f"no, {different}" if different else "the whole step")
            if different and kv_cache_dtype == "auto" and stored != device.dtype:
                self._keep(layers, device.dtype, *room)
        cached = time.perf_counter()
        self._warm_up()
        if graph_rows:
            assert capture is not None
            self._capture(capture)
        self.report = {
            "weights_s": loaded - started,
            "kv_cache_s": cached - loaded,
            "warm_up_s": time.perf_counter() - cached,
        }

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        return int(self.model.config.get_text_config().max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        """Number of token ids the model knows."""
        return int(self.model.config.get_text_config().vocab_size)

    def _choose(
        self, layers: attention.Probe, weights: Literal["auto", "stored"] | Scheme, kv_cache_dtype: KeyValueType
    ) -> tuple[Literal["stored"] | Scheme, torch.dtype, Examination]:
        """What `auto` means here: 8 bits and keys in float16 where a CPU computes whole steps with them."""
        computed = self.device.dtype
        stored = torch.float16 if kv_cache_dtype == "auto" else STORED.get(kv_cache_dtype, computed)
        size = sum(parameter.numel() for parameter in self.model.parameters())
        examined = Examination(f"it runs on {self.device.place.type}")
        if weights == "auto" and size < LARGE:
            examined = Examination(f"it has {size:,} weights")
        elif weights in {"auto", "int8"} and self.device.place.type == "cpu":
            page = attention.make_caches(
                layers, pages=1, page_size=self.page_size, dtype=stored, device=self.device.place
            )
            examined = examine(self.model, layers, page)
        if weights == "auto":
            if examined.reason:
                logger.info("weights stay as they are stored: %s", examined.reason)
            weights = "stored" if examined.reason else "int8"
        if kv_cache_dtype == "auto" and (weights != "int8" or examined.reason):
            stored = computed
        return weights, stored, examined

    def _keep(self, layers: attention.Probe, stored: torch.dtype, device_bytes: int, host_bytes: int) -> None:
        """Make caches of keys and values, and give them to the layers."""
        page_bytes = attention.bytes_per_token(layers, stored) * self.page_size
        self.pages, self.host_pages = max(1, device_bytes // page_bytes), host_bytes // page_bytes
        beyond = StaticInputs.padding_pages(self._graph_rows, self.page_size)
        self.caches, self.host_caches = (
            attention.make_caches(layers, pages=pages, page_size=self.page_size, dtype=stored, device=place)
            for pages, place in ((self.pages + beyond, self.device.place), (self.host_pages, torch.device("cpu")))
        )
        attention.attach_caches(layers, self.caches)

    @torch.inference_mode()
    def _beside_graphs(self, layers: attention.Probe, stored: torch.dtype, wanted: int, capture: Capture) -> int:
        """Bytes for pages: what is wanted, as far as it is free beside what graphs will take.

        Raises:
            ModelLoadError: not even one page is.
        """
        pages = StaticInputs.padding_pages(self._graph_rows, self.page_size)
        page_bytes = attention.bytes_per_token(layers, stored) * self.page_size
        few = attention.make_caches(
            layers, pages=pages, page_size=self.page_size, dtype=stored, device=self.device.place
        )
        attention.attach_caches(layers, few)
        needed = graph_bytes(self._static_inputs(0), self._decode, capture) + pages * page_bytes
        free = free_bytes(self.device.place) - needed
        logger.info("graphs of decode steps are expected to take %d MiB", needed >> 20)
        if free < page_bytes:
            raise ModelLoadError(
                f"decode steps of up to {self._graph_rows} sequences as CUDA graphs take {needed >> 20} MiB, which "
                'leaves no memory for KV pages; set `graphs = "off"`, or `max_running` lower'
            )
        if free < wanted:
            logger.warning("KV pages get %d MiB, not %d: no more is free", free >> 20, wanted >> 20)
        return min(wanted, free)

    def _static_inputs(self, padding_page: int) -> StaticInputs:
        return StaticInputs(
            self._graph_rows,
            width=-(-self.context_length // self.page_size),
            page_size=self.page_size,
            padding_page=padding_page,
            device=self.device.place,
        )

    @torch.inference_mode()
    def _capture(self, capture: Capture) -> None:
        before = free_bytes(self.device.place)
        self._graphs = capture_graphs(self._static_inputs(self.pages), self._decode, capture)
        logger.info("graphs of decode steps took %d MiB", (before - free_bytes(self.device.place)) >> 20)

    def _find(self) -> Calibration:
        return calibrate(self.model, self.caches, self._calibrate)

    def _calibrate(self) -> None:
        """Run random tokens: which inputs of a layer are large is the model's own, hardly the text's."""
        count = min(CALIBRATED, self.pages * self.page_size, self.context_length)
        tokens = torch.randint(self.vocabulary, (count,), generator=torch.Generator().manual_seed(0)).tolist()
        scored = Sampling(max_tokens=1, prompt_logprobs=0)  # so that the last layer sees them all
        request = SequenceRequest("calibration", tokens, scored, pages=list(range(self.pages)))
        self.run(Batch([Chunk(request, 0, count)]))

    def _warm_up(self) -> None:
        """Run a token, so that kernels are compiled and memory is there before the first request comes."""
        request = SequenceRequest("warm-up", [0], Sampling(max_tokens=1), pages=[0])
        self.run(Batch([Chunk(request, 0, 1)]))

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        """Compute the batch's chunks; their keys and values are in the cache afterwards.

        What is returned is valid until the next run.
        """
        self._move(batch.transfers)
        if self._graphs is not None and self._graphs.can_run(batch):
            return StepOutput(self._graphs.run(batch), None)
        chunks = batch.chunks
        inputs = fresh_inputs(batch, self.page_size, self.device.place)
        given = inputs.ids_1T
        if any(chunk.request.media is not None for chunk in chunks):
            assert self.encoder is not None
            given = self.encoder.embed(inputs.ids_1T, chunks)
        embeds = any(chunk.request.sampling is None for chunk in chunks)
        logits, hidden_TD, likeliest = self._computed(inputs, given, hidden=embeds)
        scored = logits[inputs.sampled :] if len(logits) > inputs.sampled else None
        found = likeliest[: inputs.sampled] if likeliest is not None else None
        return StepOutput(logits[: inputs.sampled], hidden_TD, scored, found)

    def _computed(
        self, inputs: StepInputs, given: torch.Tensor, *, hidden: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, TopLogit | None]:
        """Logits of the rows that are wanted, hidden states of all tokens, where they are, and who is likeliest."""
        forward = self._forward if self._compiled is None else self._compiled.run
        with self.threads.step(0 if self._compiled is None else spared_threads(given.shape[1])):
            return forward(given, inputs.position_1T, inputs.batch, inputs.rows_R, hidden=hidden)

    def _decode(self, inputs: StepInputs) -> torch.Tensor:
        return self._computed(inputs, inputs.ids_1T, hidden=False)[0]

    @property
    def graph_steps(self) -> int:
        """Steps that were computed as a graph."""
        return self._graphs.replayed if self._graphs is not None else 0

    def _forward(
        self,
        given: torch.Tensor,
        position_1T: torch.Tensor,
        batch: attention.AttentionBatch,
        rows: torch.Tensor,
        *,
        hidden: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None, TopLogit | None]:
        """The model's own way from tokens or embeddings to logits of some rows, and to hidden states of all."""
        output = self.model(
            **{"inputs_embeds" if given.is_floating_point() else "input_ids": given},
            position_ids=position_1T,
            use_cache=False,
            logits_to_keep=rows,
            tessera_batch=batch,
            output_hidden_states=hidden,
        )
        return output.logits[0], output.hidden_states[-1][0] if hidden else None, None

    def _move(self, transfers: list[Transfer]) -> None:
        """Move pages inside the device and between it and the host, in the order in which they are asked for."""
        for transfer in transfers:
            for device, host in zip(self.caches, self.host_caches, strict=True):
                for on_device, on_host in zip(device.tensors, host.tensors, strict=True):
                    if isinstance(transfer, Copy):
                        on_device[transfer.target] = on_device[transfer.source]
                    elif isinstance(transfer, Offload):
                        on_host[transfer.slot].copy_(on_device[transfer.page], non_blocking=True)
                    else:
                        on_device[transfer.page].copy_(on_host[transfer.slot], non_blocking=True)
