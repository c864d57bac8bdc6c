"""Peers: what a user without a GPU would run instead of this suite, measured on the same questions in the same run.

A peer that is a library runs in a process of its own without HTTP, which is in its favour. `servers` has the peers that
are servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tessera_bench import servers
from tessera_bench.child_process import json_of
from tessera_bench.workload import Speeds, Workload, environment

# Scripts for other environments: they import nothing of ours, read one JSON argument and print one JSON line.
TRANSFORMERS = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
given = json.loads(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(given["directory"], dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(given["directory"], padding_side="left")
def run(prompts, tokens):
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return time.perf_counter() - started
run(given["first"], 4)
one, many = run([given["single"]], given["tokens"]), sum(run(each, given["tokens"]) for each in given["rounds"])
cold = run([given["long_prompt"]], 1)
count = sum(map(len, given["rounds"]))
rates = {"one": given["tokens"] / one, "many": count * given["tokens"] / many}
print(json.dumps({**rates, "ttft_cold": cold, "ttft_warm": cold}))
"""
OPENVINO = """
import json, sys, time
import openvino_genai as genai
given = json.loads(sys.argv[1])
scheduler = genai.SchedulerConfig()
scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.cache_size = 2048, 64, 2
scheduler.enable_prefix_caching = True
pipe = genai.LLMPipeline(given["gguf"], "CPU", scheduler_config=scheduler)
config = genai.GenerationConfig()
config.do_sample, config.ignore_eos, config.apply_chat_template = False, True, False
def run(prompts, tokens):
    config.max_new_tokens = config.min_new_tokens = tokens
    started = time.perf_counter()
    pipe.generate(prompts, config)
    return time.perf_counter() - started
run(given["first"], 4)
one, many = run([given["single"]], given["tokens"]), sum(run(each, given["tokens"]) for each in given["rounds"])
cold, warm = run([given["long_prompt"]], 1), run([given["long_prompt"]], 1)
count = sum(map(len, given["rounds"]))
rates = {"one": given["tokens"] / one, "many": count * given["tokens"] / many}
print(json.dumps({**rates, "ttft_cold": cold, "ttft_warm": warm}))
"""


def transformers(workload: Workload) -> Speeds:
    """Transformers' own `generate` in our environment, float32, one padded batch."""
    return _measured(Path(sys.executable), TRANSFORMERS, workload)


def openvino(workload: Workload) -> Speeds:
    """OpenVINO GenAI on the GGUF file, continuous batching in process."""
    return _measured(environment("openvino", ["openvino-genai"]), OPENVINO, workload, gguf=str(workload.gguf))


PEERS: dict[str, tuple[str, Callable[[Workload], Speeds]]] = {
    "transformers": ("Transformers generate (in process)", transformers),
    "transformers-serve": ("transformers serve, continuous batching (HTTP)", servers.transformers_serve),
    "llama.cpp": ("llama.cpp's server, Q4_1 (HTTP)", servers.llama_cpp),
    "vllm": ("vLLM for CPUs (HTTP)", servers.vllm),
    "openvino": ("OpenVINO GenAI, Q4_1 (in process)", openvino),
}


def _measured(python: Path, script: str, workload: Workload, **more: str) -> Speeds:
    given = {
        **more,
        "directory": str(workload.directory),
        "rounds": [[_chat(question) for question in questions] for questions in workload.rounds],
        "first": [_chat(question) for question in workload.first],
        "single": _chat(workload.single),
        "tokens": workload.tokens,
        "long_prompt": _chat(workload.long_question),
    }
    return Speeds(**json_of([python, "-c", script, json.dumps(given)], "the peer"))


def _chat(question: str) -> str:
    """The prompt of a question as SmolLM2's chat template writes it: ChatML with its own system message."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
