"""Converts a GGUF file to a model directory: `python -m tessera.models.gguf_conversion FILE DIRECTORY`.

Transformers reads the configuration, vocabulary, chat template and tensors. Blocks become float16, which is the
precision of their own scales. The conversion is a process of its own, so that its memory is returned. Its last line of
output is `{"error": …}`; a success prints nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def convert(file: Path, directory: Path) -> None:
    """Fill `directory` with the model in `file`."""
    source, name = str(file.parent), file.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, local_files_only=True, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.float16, local_files_only=True, trust_remote_code=False
    )
    # The tensors are plain now, but Transformers refuses to write a model that it still takes for quantized.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main() -> None:
    """Convert the file that the command line names."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    file, directory = (Path(argument) for argument in sys.argv[1:3])
    try:
        convert(file, directory)
    except Exception as error:  # noqa: BLE001 (whatever a hostile file does, the caller gets a sentence)
        sys.stdout.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}) + "\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
