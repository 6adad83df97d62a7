"""What the commands have in common: where the model is, which questions are asked, where the results go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcalling.data import HALVES, Question, load_questions

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "src" / "antwort" / "local" / "smollm2-tools.gguf"


def parser(description: str, half: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--half", choices=HALVES, default=half, help=f"which questions (default: {half})")
    made.add_argument("--every", type=int, default=1, metavar="N", help="each Nth question of every kind only")
    made.add_argument("--model", type=Path, metavar="FILE", help="a GGUF (default: the demo model)")
    made.add_argument("--out", type=Path, default=ROOT / ".bench", metavar="DIR", help="where the results go")
    return made


def questions(half: str, every: int) -> tuple[Question, ...]:
    return load_questions(half)[::every]


def model_of(path: Path | None) -> Path:
    found = path or demo_model()
    if not found.is_file():
        raise SystemExit(f"There is no model at {found}: run `antwort model pull`, or say --model FILE.")
    return found


def demo_model() -> Path:
    from antwort.config.settings import Settings
    from antwort.local.demo import demo_path

    return demo_path(Settings().data_folder())


def write(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")
