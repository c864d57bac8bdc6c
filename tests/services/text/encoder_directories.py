"""Directories of tiny random encoders for the text service: an embedding model, rerankers and classifiers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.shared.encoders.tiny_encoders import make, write_sentence_files

PROMPTS = {"query": "one ", "document": "two "}


def make_all(folder: Path) -> dict[str, Path]:
    """All of them, by the names that requests use."""
    names = ("bi", "cross", "yes-no", "moods", "guard")
    paths = {name: folder / name for name in names}
    make(paths["bi"], "bert", matryoshka_dimensions=[8, 16])
    write_sentence_files(paths["bi"], "mean_tokens", prompts=PROMPTS)
    (paths["bi"] / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    make(paths["cross"], "bert", "classifier", labels=["LABEL_0"])
    make(paths["yes-no"], "qwen3", "decoder")
    make(paths["moods"], "modernbert", "classifier", labels=["good", "bad", "ugly"])
    make(
        paths["guard"],
        "roberta",
        "classifier",
        labels=["safe", "insult", "threat", "abuse"],
        problem_type="multi_label_classification",
        pad_token_id=0,
    )
    return paths


def settings_of(paths: dict[str, Path]) -> str:
    """`text.encoders` with all of them, as the environment has it."""
    more = {
        "yes-no": {"role": "rerank"},
        "guard": {
            "role": "moderation",
            "categories": {"insult": "harassment", "threat": "violence", "abuse": "harassment"},
            "threshold": 0.6,
        },
    }
    return json.dumps([{"source": str(path), **more.get(name, {})} for name, path in paths.items()])
