"""Builds a `SequenceRunner`: load, fuse, choose a scheme, allocate pages, quantize, compile, warm up, capture graphs.

Every step of a start is one function here, in the order in which `build_runner` calls them. Knows nothing about
requests that are served: it runs two of its own, for calibration and to warm up.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from tessera.device.hardware import Device, free_bytes
from tessera.errors import ModelLoadError
from tessera.models import attention
from tessera.models.decoders import experts_stored_as, load_decoder, require_attention_only
from tessera.models.experts import replace_experts
from tessera.models.fusion import FusionReport, fuse
from tessera.models.quantized import Scheme, quantize
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.calibration import Calibration, calibrate, load_or_calibrate
from tessera.sequence.runner.compiled.decoder import CompiledDecoder, Examination, compile_decoder, examine
from tessera.sequence.runner.cpu_threads import ThreadShare
from tessera.sequence.runner.decode_graphs import Capture, CudaCapture, DecodeGraphs, capture_graphs, graph_bytes
from tessera.sequence.runner.forward import Forward, ModelLayers
from tessera.sequence.runner.image_encoder import ImageEncoder
from tessera.sequence.runner.page_storage import PageStorage
from tessera.sequence.runner.sequence_runner import SequenceRunner, context_length_of, vocabulary_size_of
from tessera.sequence.runner.step_inputs import StaticInputs, fresh_inputs
from tessera.wire.engine import Sampling

logger = logging.getLogger(__name__)

CALIBRATION_TOKENS = 1024
"""Random tokens that are run to find the inputs with outliers before weights are quantized."""
AUTO_INT8_MIN_WEIGHTS = 50_000_000
"""Smallest number of weights for which `auto` quantizes to int8: a smaller model is fast anyway, and loses more."""
KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Stored dtype of keys and values by the setting `kv_cache_dtype`; other settings store what was computed."""
KeyValueType = Literal["auto", "computed", "int8", "fp8"]


@dataclass(frozen=True)
class _Loaded:
    """A decoder that was loaded and fused, before its weights are quantized.

    Attributes:
        model: the decoder, on its device.
        layers: its attention layers.
        device: where it runs.
        page_size: token slots of a page.
        graph_rows: most sequences of a decode step that runs as a graph; 0 when none does.
    """

    model: PreTrainedModel
    layers: attention.Probe
    device: Device
    page_size: int
    graph_rows: int

    @property
    def padding_pages(self) -> int:
        """Pages that the padding of graphs writes to."""
        return StaticInputs.padding_pages(self.graph_rows, self.page_size)

    def static_inputs(self, padding_page: int) -> StaticInputs:
        """Inputs that graphs read, whose padding writes to pages from `padding_page` on."""
        return StaticInputs(
            self.graph_rows,
            width=-(-context_length_of(self.model) // self.page_size),
            page_size=self.page_size,
            padding_page=padding_page,
            device=self.device.place,
        )

    def allocate(self, dtype: torch.dtype, device_bytes: int, host_bytes: int) -> PageStorage:
        """Storage of keys and values as `dtype`, attached to the model."""
        return PageStorage.allocate(
            self.layers,
            page_size=self.page_size,
            dtype=dtype,
            device=self.device.place,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            padding_pages=self.padding_pages,
        )


@dataclass(frozen=True)
class _StoragePlan:
    """How weights, keys and values are stored.

    Attributes:
        weights: the scheme of linear layers; `stored` leaves them as they are.
        kv_dtype: dtype of keys and values in the cache.
        examination: whether whole steps can be compiled once weights are int8.
    """

    weights: Literal["stored"] | Scheme
    kv_dtype: torch.dtype
    examination: Examination


def build_runner(
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
) -> SequenceRunner:
    """Load a decoder and make it ready to run.

    Args:
        directory: the model directory.
        device: where the model runs.
        page_size: token slots of a page.
        kv_cache_bytes: bytes for pages on the device.
        host_cache_bytes: bytes for pages on the host, which leave the device.
        fused: whether linear layers that read the same input are computed as one.
        weights: the scheme of linear layers; `auto` chooses by size and device.
        kv_cache_dtype: what keys and values are stored as.
        dummy: whether weights are random instead of loaded.
        graph_rows: most sequences of a decode step that runs as a CUDA graph, padded to one of a few sizes; 0 for none.
        capture: makes the graphs; CUDA's when not given.

    Raises:
        ModelLoadError: the model cannot be loaded, or leaves no memory for pages.
    """
    started = time.perf_counter()
    model = load_decoder(directory, device=device.place, dtype=device.dtype, dummy=dummy)
    loaded = time.perf_counter()
    layers = attention.probe(model)
    require_attention_only(model, layers, directory)
    fusion = fuse(model) if fused else FusionReport({})
    logger.info("fused: %s", fusion)
    encoder = ImageEncoder.of(model)
    on_cpu = device.place.type == "cpu"
    forward = Forward(ModelLayers(model), ThreadShare(torch.get_num_threads() if on_cpu else 1, torch.set_num_threads))
    decoder = _Loaded(model, layers, device, page_size, graph_rows)
    plan = _plan_storage(decoder, weights, kv_cache_dtype)
    if graph_rows:
        capture = CudaCapture(device.place) if capture is None else capture
        kv_cache_bytes = _fit_beside_graphs(decoder, forward, plan.kv_dtype, kv_cache_bytes, capture)
    storage = decoder.allocate(plan.kv_dtype, kv_cache_bytes, host_cache_bytes)
    calibration = Calibration({}, [])
    if plan.weights == "int8":
        settings = f"{CALIBRATION_TOKENS} tokens, fused: {fused}, keys: {plan.kv_dtype}"

        def find() -> Calibration:
            return calibrate(model, storage.caches, lambda: _run_calibration_tokens(decoder, forward, storage.pages))

        calibration = find() if dummy else load_or_calibrate(directory, settings, find)
    _quantize(decoder, directory, plan.weights, calibration)
    if plan.weights == "int8" and on_cpu:
        compiled, reason = _compile(decoder, plan, storage, calibration)
        logger.info("compiled: %s", f"no, {reason}" if reason else "the whole step")
        if compiled is not None:
            forward = Forward(compiled, forward.threads)
        elif kv_cache_dtype == "auto" and plan.kv_dtype != device.dtype:
            storage = decoder.allocate(device.dtype, kv_cache_bytes, host_cache_bytes)
    cached = time.perf_counter()
    _warm_up(decoder, forward)
    graphs = None
    if graph_rows:
        assert capture is not None
        graphs = _capture(decoder, forward, storage.pages, capture)
    report = {
        "weights_s": loaded - started,
        "kv_cache_s": cached - loaded,
        "warm_up_s": time.perf_counter() - cached,
    }
    return SequenceRunner(
        model,
        device,
        forward=forward,
        storage=storage,
        encoder=encoder,
        graphs=graphs,
        fusion=fusion,
        report=report,
    )


def _plan_storage(
    decoder: _Loaded, weights: Literal["auto", "stored"] | Scheme, kv_cache_dtype: KeyValueType
) -> _StoragePlan:
    """Decide what `auto` means: int8 weights and float16 keys where a CPU can compile whole steps with them."""
    model, device = decoder.model, decoder.device
    computed = device.dtype
    kv_dtype = torch.float16 if kv_cache_dtype == "auto" else KV_DTYPES.get(kv_cache_dtype, computed)
    size = sum(parameter.numel() for parameter in model.parameters())
    examination = Examination(f"it runs on {device.place.type}")
    if weights == "auto" and size < AUTO_INT8_MIN_WEIGHTS:
        examination = Examination(f"it has {size:,} weights")
    elif weights in {"auto", "int8"} and device.place.type == "cpu":
        page = attention.make_caches(
            decoder.layers, pages=1, page_size=decoder.page_size, dtype=kv_dtype, device=device.place
        )
        examination = examine(model, decoder.layers, page)
    if weights == "auto":
        if examination.reason:
            logger.info("weights stay as they are stored: %s", examination.reason)
        weights = "stored" if examination.reason else "int8"
    if kv_cache_dtype == "auto" and (weights != "int8" or examination.reason):
        kv_dtype = computed
    return _StoragePlan(weights, kv_dtype, examination)


@torch.inference_mode()
def _fit_beside_graphs(
    decoder: _Loaded, forward: Forward, kv_dtype: torch.dtype, wanted_bytes: int, capture: Capture
) -> int:
    """Bytes for pages: `wanted_bytes`, or what is free beside the memory that graphs will take, if that is less.

    Raises:
        ModelLoadError: not even one page is free.
    """
    layers, place, pages = decoder.layers, decoder.device.place, decoder.padding_pages
    page_bytes = attention.bytes_per_token(layers, kv_dtype) * decoder.page_size
    few = attention.make_caches(layers, pages=pages, page_size=decoder.page_size, dtype=kv_dtype, device=place)
    attention.attach_caches(layers, few)
    needed = graph_bytes(decoder.static_inputs(0), forward.decode, capture) + pages * page_bytes
    free = free_bytes(place) - needed
    logger.info("graphs of decode steps are expected to take %d MiB", needed >> 20)
    if free < page_bytes:
        raise ModelLoadError(
            f"decode steps of up to {decoder.graph_rows} sequences as CUDA graphs take {needed >> 20} MiB, which "
            'leaves no memory for KV pages; set `graphs = "off"`, or `max_running` lower'
        )
    if free < wanted_bytes:
        logger.warning("KV pages get %d MiB, not %d: no more is free", free >> 20, wanted_bytes >> 20)
    return min(wanted_bytes, free)


def _quantize(decoder: _Loaded, directory: Path, weights: Literal["stored"] | Scheme, calibration: Calibration) -> None:
    """Quantize the linear layers and replace the experts, in place."""
    if weights != "stored":
        logger.info("in %s: %s", weights, quantize(decoder.model, weights, calibration.inputs))
    # On a CPU Transformers' own grouped products are faster than ours.
    if decoder.device.place.type != "cpu" or weights not in {"stored", "int8"}:
        scheme = experts_stored_as(directory) if weights == "stored" else weights
        logger.info("experts in %s: %s", scheme, replace_experts(decoder.model, scheme))


def _compile(
    decoder: _Loaded, plan: _StoragePlan, storage: PageStorage, calibration: Calibration
) -> tuple[CompiledDecoder | None, str]:
    """The decoder as one compiled step, or None and the reason why it cannot be one."""
    if plan.examination.reason:
        return None, plan.examination.reason
    return compile_decoder(decoder.model, decoder.layers, storage.caches, calibration.keys, plan.examination.order_D)


def _run_calibration_tokens(decoder: _Loaded, forward: Forward, pages: int) -> None:
    """Run random tokens: which inputs of a layer are large depends on the model, hardly on the text."""
    count = min(CALIBRATION_TOKENS, pages * decoder.page_size, context_length_of(decoder.model))
    vocabulary = vocabulary_size_of(decoder.model)
    tokens = torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    scored = Sampling(max_tokens=1, prompt_logprobs=0)  # so that the last layer sees all tokens
    request = SequenceRequest("calibration", tokens, scored, pages=list(range(pages)))
    _run_request(decoder, forward, request)


def _warm_up(decoder: _Loaded, forward: Forward) -> None:
    """Run one token, so that kernels are compiled and memory is allocated before the first request comes."""
    _run_request(decoder, forward, SequenceRequest("warm-up", [0], Sampling(max_tokens=1), pages=[0]))


@torch.inference_mode()
def _run_request(decoder: _Loaded, forward: Forward, request: SequenceRequest) -> None:
    batch = Batch([Chunk(request, 0, len(request.token_ids))])
    forward.decode(fresh_inputs(batch, decoder.page_size, decoder.device.place))


@torch.inference_mode()
def _capture(decoder: _Loaded, forward: Forward, pages: int, capture: Capture) -> DecodeGraphs | None:
    """Capture decode steps as graphs, whose padding writes to the pages behind those of requests."""
    place = decoder.device.place
    before = free_bytes(place)
    graphs = capture_graphs(decoder.static_inputs(pages), forward.decode, capture)
    logger.info("graphs of decode steps took %d MiB", (before - free_bytes(place)) >> 20)
    return graphs
