"""As much of the GGUF format as training an adapter needs: reading a model's tensors, writing a LoRA adapter."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MAGIC = b"GGUF"
ALIGNMENT = 32
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The metadata, and every tensor as float32, its rows first."""
    data = np.memmap(path, mode="r")
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ValueError(f"{path} is no GGUF file")
        _, tensors, entries = struct.unpack("<IQQ", file.read(20))
        meta = {_text(file): _value(file, _number(file, "<I")) for _ in range(entries)}
        infos = [_info(file) for _ in range(tensors)]
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    return meta, {name: _tensor(data, start + at, shape, kind) for name, shape, kind, at in infos}


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "<Q")).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind == _ARRAY:
        inner, length = _number(file, "<I"), _number(file, "<Q")
        return [_value(file, inner) for _ in range(length)]
    return _number(file, _SCALARS[kind])


def _info(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(file)
    sizes = [_number(file, "<Q") for _ in range(_number(file, "<I"))]
    return name, tuple(reversed(sizes)), _number(file, "<I"), _number(file, "<Q")


def _tensor(data: np.ndarray, at: int, shape: tuple[int, ...], kind: int) -> np.ndarray:
    number = int(np.prod(shape))
    if kind == F32:
        return np.frombuffer(data[at : at + 4 * number].tobytes(), "<f4").reshape(shape)
    if kind == F16:
        return np.frombuffer(data[at : at + 2 * number].tobytes(), "<f2").astype("f4").reshape(shape)
    size = {Q4_1: 20, Q8_0: 34}[kind]
    blocks = np.asarray(data[at : at + number // 32 * size]).reshape(-1, size)
    return (_q4_1 if kind == Q4_1 else _q8_0)(blocks).reshape(shape)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """32 weights: a scale, a least, 16 bytes of two nibbles each, the low ones first."""
    scale = blocks[:, 0:2].copy().view("<f2").astype("f4")
    least = blocks[:, 2:4].copy().view("<f2").astype("f4")
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype("f4")
    return nibbles * scale + least


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].copy().view("i1").astype("f4") * blocks[:, 0:2].copy().view("<f2").astype("f4")


# ---- writing ----


def write_adapter(path: Path, name: str, alpha: float, tensors: Mapping[str, np.ndarray]) -> None:
    """A LoRA adapter for `llama` models: pairs `NAME.lora_a` (rank x in) and `NAME.lora_b` (out x rank)."""
    meta = [
        ("general.type", "adapter"),
        ("general.architecture", "llama"),
        ("general.name", name),
        ("general.license", "apache-2.0"),
        ("adapter.type", "lora"),
        ("adapter.lora.alpha", float(alpha)),
    ]
    bodies = {key: np.ascontiguousarray(value, "<f2").tobytes() for key, value in tensors.items()}
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, len(bodies), len(meta)))
        for key, value in meta:
            file.write(_written(key) + _entry(value))
        at = 0
        for key, value in tensors.items():
            file.write(_written(key) + struct.pack("<I", value.ndim))
            file.write(struct.pack(f"<{value.ndim}Q", *reversed(value.shape)) + struct.pack("<IQ", F16, at))
            at += _padded(len(bodies[key]))
        file.write(b"\0" * (_padded(file.tell()) - file.tell()))
        for body in bodies.values():
            file.write(body + b"\0" * (_padded(len(body)) - len(body)))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _written(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(value: str | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _written(value)
    return struct.pack("<If", 6, value)
