"""The tokenizer inside a GGUF."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from gguf_file import read


def tokenizer_of(model: Path) -> tokenizers.Tokenizer:
    """The tokenizer inside a GGUF: byte-level BPE, digits apart (`smollm`)."""
    meta, _ = read(model)
    words: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges)
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == 3]
    made.add_special_tokens(special)
    return made
