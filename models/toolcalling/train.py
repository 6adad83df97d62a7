"""Train a LoRA adapter on tokens: `python train.py tokens.npz --model demo.gguf --out adapter.gguf`.

The model is read out of the GGUF that it will run as, so the adapter also learns to make up for the quantization. Needs
torch and numpy; a GPU makes it minutes instead of days.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf_file import read, write_adapter
from torch import Tensor, nn
from torch.nn import functional as F

LINEAR = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Adapted(nn.Module):
    """A frozen linear map and a low-rank one beside it."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1], device=weight.device) / math.sqrt(weight.shape[1]))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank, device=weight.device))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(self.dropout(x), self.a.to(x.dtype)), (self.scale * self.b).to(x.dtype))
        return F.linear(x, self.weight) + low


class Block(nn.Module):
    def __init__(
        self, weights: dict[str, Tensor], meta: dict[str, Any], rank: int, alpha: float, dropout: float
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({name: Adapted(weights[name], rank, alpha, dropout) for name in LINEAR})
        self.norm_in, self.norm_mid = weights["attn_norm"], weights["ffn_norm"]
        self.heads, self.groups = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
        self.eps = meta["llama.attention.layer_norm_rms_epsilon"]

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self._attend(rms(x, self.norm_in, self.eps), turns)
        y = rms(x, self.norm_mid, self.eps)
        return x + self.maps["ffn_down"](F.silu(self.maps["ffn_gate"](y)) * self.maps["ffn_up"](y))

    def _attend(self, x: Tensor, turns: Tensor) -> Tensor:
        q = turned(self._heads("attn_q", x, self.heads), turns)
        k = turned(self._heads("attn_k", x, self.groups), turns)
        v = self._heads("attn_v", x, self.groups)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.maps["attn_output"](y.transpose(1, 2).flatten(2))

    def _heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        return self.maps[name](x).unflatten(-1, (heads, -1)).transpose(1, 2)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions, neighbours paired: so GGUF keeps the weights of `llama` models."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[: x.shape[2]]).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, path: Path, rank: int, alpha: float, dropout: float, device: str, kind: torch.dtype) -> None:
        super().__init__()
        meta, tensors = read(path)
        weights = {name: torch.tensor(np.array(value), device=device, dtype=kind) for name, value in tensors.items()}
        self.embedding, self.norm = weights["token_embd.weight"], weights["output_norm.weight"]
        self.eps = meta["llama.attention.layer_norm_rms_epsilon"]
        self.blocks = nn.ModuleList(
            Block(_layer(weights, number), meta, rank, alpha, dropout) for number in range(meta["llama.block_count"])
        )
        half = meta["llama.rope.dimension_count"] // 2
        rates = meta["llama.rope.freq_base"] ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.arange(4096, device=device)[:, None] * rates[None]
        self.turns = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, self.turns)
        return rms(x, self.norm, self.eps)


def _layer(weights: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    start = f"blk.{number}."
    return {
        name.removeprefix(start).removesuffix(".weight"): value
        for name, value in weights.items()
        if name.startswith(start)
    }


# ---- data ----


class Data:
    def __init__(self, path: Path) -> None:
        file = np.load(path)
        self.lengths = file["lengths"]
        self.ends = np.cumsum(self.lengths)
        self.tokens = file["tokens"]
        self.learnt = np.unpackbits(file["learnt"])[: len(self.tokens)].astype(bool)

    def batches(self, chosen: np.ndarray, most: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Conversations of like length together, up to so many tokens, in a random order of batches."""
        order = chosen[np.argsort(self.lengths[chosen] + np.random.default_rng(seed).integers(0, 32, len(chosen)))]
        groups: list[list[int]] = [[]]
        for index in order:
            if (len(groups[-1]) + 1) * self.lengths[index] > most:
                groups.append([])
            groups[-1].append(index)
        for number in np.random.default_rng(seed).permutation(len(groups)):
            if groups[number]:
                yield self._padded(groups[number])

    def _padded(self, group: list[int]) -> tuple[Tensor, Tensor]:
        longest = int(max(self.lengths[index] for index in group))
        tokens = np.zeros((len(group), longest), "i8")
        learnt = np.zeros((len(group), longest), bool)
        for row, index in enumerate(group):
            start, end = self.ends[index] - self.lengths[index], self.ends[index]
            tokens[row, : end - start] = self.tokens[start:end]
            learnt[row, : end - start] = self.learnt[start:end]
        return torch.from_numpy(tokens), torch.from_numpy(learnt)


def loss_of(model: Llama, tokens: Tensor, learnt: Tensor) -> tuple[Tensor, Tensor]:
    """The loss over what is to be learnt, and the share of those tokens that came out first."""
    states = model(tokens)[:, :-1][learnt[:, 1:]]
    wanted = tokens[:, 1:][learnt[:, 1:]]
    logits = F.linear(states, model.embedding).float()
    return F.cross_entropy(logits, wanted), (logits.argmax(-1) == wanted).float().mean()


# ---- training ----


def train(chosen: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(chosen.seed)
    model = Llama(chosen.model, chosen.rank, chosen.alpha, chosen.dropout, device, kind)
    data = Data(chosen.tokens)
    shuffled = np.random.default_rng(chosen.seed).permutation(len(data.lengths))
    held, used = shuffled[:300], shuffled[300:]
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=chosen.rate, weight_decay=0.01, betas=(0.9, 0.98))
    total = sum(1 for epoch in range(chosen.epochs) for _ in data.batches(used, chosen.batch, epoch))
    start, step = time.monotonic(), 0
    report(model, data, held, chosen.batch, device, "before")
    for epoch in range(chosen.epochs):
        for tokens, learnt in data.batches(used, chosen.batch, epoch):
            warm = min(1.0, (step + 1) / 50)
            rate = chosen.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / total)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss, right = loss_of(model, tokens.to(device), learnt.to(device))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 50 == 0 or step == total:
                spent = time.monotonic() - start
                print(f"{step}/{total} loss {loss.item():.4f} right {right.item():.4f} {spent:.0f} s", flush=True)
            if chosen.seconds and time.monotonic() - start > chosen.seconds:
                break
        report(model, data, held, chosen.batch, device, f"epoch {epoch + 1}")
        save(model, chosen)


@torch.no_grad()
def report(model: Llama, data: Data, held: np.ndarray, batch: int, device: str, when: str) -> None:
    model.eval()
    figures = [loss_of(model, tokens.to(device), learnt.to(device)) for tokens, learnt in data.batches(held, batch, 0)]
    model.train()
    loss = sum(loss.item() for loss, _ in figures) / len(figures)
    right = sum(right.item() for _, right in figures) / len(figures)
    print(f"{when}: held-out loss {loss:.4f}, next token right {right:.4f}", flush=True)


def save(model: Llama, chosen: argparse.Namespace) -> None:
    tensors = {}
    for number, block in enumerate(model.blocks):
        for name, adapted in block.maps.items():
            tensors[f"blk.{number}.{name}.weight.lora_a"] = adapted.a.detach().float().cpu().numpy()
            tensors[f"blk.{number}.{name}.weight.lora_b"] = adapted.b.detach().float().cpu().numpy()
    write_adapter(chosen.out, "SmolLM2-135M-Instruct tool use", chosen.alpha, tensors)
    print(f"{chosen.out}: {chosen.out.stat().st_size} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32768, help="tokens of a step, padding included")
    parser.add_argument("--seconds", type=float, default=0, help="stop an epoch after so long")
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
