"""What the model says with an adapter: `python ask.py prompts.jsonl --model M.gguf --adapter A.gguf --out said.jsonl`.

A line of either file is a text in JSON: a whole prompt, template and all, and what comes after it. Nothing constrains
the answers here: this is to look at training, on the machine that trains. What is told is measured by
`bench/toolcalling`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from gguf_file import read
from plain import answered
from tokens import tokenizer_of
from train import Llama


def adapted(path: Path, adapter: Path, device: str) -> Llama:
    meta, tensors = read(adapter)
    rank = tensors["blk.0.attn_q.weight.lora_a"].shape[0]
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    model = Llama(path, rank, meta["adapter.lora.alpha"], 0.0, device, kind)
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            for name, each in block.maps.items():
                each.a.copy_(torch.tensor(tensors[f"blk.{number}.{name}.weight.lora_a"].copy()))
                each.b.copy_(torch.tensor(tensors[f"blk.{number}.{name}.weight.lora_b"].copy()))
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = tokenizer_of(chosen.model)
    prompts = [tokenizer.encode(json.loads(line), add_special_tokens=False).ids for line in chosen.prompts.open()]
    model = adapted(chosen.model, chosen.adapter, device)
    with chosen.out.open("w") as file:
        for answer in answered(model, prompts, 120, device):
            file.write(json.dumps(tokenizer.decode(answer), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
