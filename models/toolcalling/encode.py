"""Conversations become tokens: `python encode.py conversations.jsonl --model demo.gguf --out tokens.npz`.

The prompts are those of `antwort.providers.tool_emulation.prompt`, the tokens those of llama.cpp, as in inference.
Only the assistant's messages are learnt. A line `{"plain": [messages]}` is a conversation without tools.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokens import tokenizer_of

from antwort.providers.base import ChatMessage, ChatTool
from antwort.providers.tool_emulation.prompt import rewrite_messages
from antwort.providers.tool_emulation.tool_choice import AnswerOptions

LONGEST = 1536
"""Tokens of a conversation; longer ones are left out."""


def pieces(line: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is to be learnt. ChatML, as the demo model's template has it."""
    if "plain" in line:
        messages = [msgspec.convert(message, ChatMessage) for message in line["plain"]]
    else:
        tools = tuple(msgspec.convert(tool, ChatTool) for tool in line["tools"])
        given = [msgspec.convert(message, ChatMessage) for message in line["messages"]]
        messages = rewrite_messages(given, AnswerOptions(tools=tools, may_answer=not line["must_call"]))
    for message in messages:
        yield f"<|im_start|>{message.role}\n", False
        yield f"{message.content}<|im_end|>", message.role == "assistant"
        yield "\n", False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conversations", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    tokenizer = tokenizer_of(chosen.model)
    tokens: list[np.ndarray] = []
    learnt: list[np.ndarray] = []
    dropped = 0
    for path in chosen.conversations:
        for line in path.open():
            ids: list[int] = []
            mask: list[bool] = []
            for text, is_learnt in pieces(json.loads(line)):
                part = tokenizer.encode(text, add_special_tokens=False).ids
                ids += part
                mask += [is_learnt] * len(part)
            if len(ids) > LONGEST:
                dropped += 1
                continue
            tokens.append(np.array(ids, "u2"))
            learnt.append(np.array(mask, "?"))
    lengths = np.array([len(each) for each in tokens], "i4")
    packed = np.packbits(np.concatenate(learnt))
    np.savez_compressed(chosen.out, tokens=np.concatenate(tokens), learnt=packed, lengths=lengths)
    print(f"{len(tokens)} conversations, {lengths.sum()} tokens, {dropped} too long", file=sys.stderr)


if __name__ == "__main__":
    main()
