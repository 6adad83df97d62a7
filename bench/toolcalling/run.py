"""Tool choice of the demo model: native against constrained, with and without the adapter. To be told, on `test`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolcalling.data import load_tools
from toolcalling.measure import measure, record, score, table
from toolcalling.modes import Mode, Native
from toolcalling.setting import ADAPTER, model_of, parser, questions, write
from toolcalling.through import ThroughAntwort

MODES: dict[str, Mode] = {"native": Native(), "constrained": ThroughAntwort()}


class Contender(NamedTuple):
    name: str
    mode: Mode
    adapter: Path | None


def contenders(modes: Sequence[str], adapter: Path | None) -> Iterator[Contender]:
    for name in modes:
        yield Contender(name, MODES[name], None)
        if adapter is not None:
            yield Contender(f"{name}, adapter", MODES[name], adapter)


def main() -> None:
    made = parser(str(__doc__), half="test")
    made.add_argument("--adapter", type=Path, metavar="FILE", help="a LoRA adapter (default: the package's, if any)")
    made.add_argument("--modes", default=",".join(MODES), metavar="A,B", help="which modes (default: all)")
    asked = made.parse_args()
    adapter = asked.adapter or (ADAPTER if ADAPTER.is_file() else None)
    model, tools, half = model_of(asked.model), load_tools(), questions(asked.half, asked.every)
    scores, results = {}, {}
    for name, mode, loaded in contenders(asked.modes.split(","), adapter):
        answers = measure(mode, half, tools, model, loaded)
        scores[name], results[name] = score(answers), record(answers)
        write(asked.out / f"toolcalling-{asked.half}.json", results)
    print(f"{len(half)} questions of `{asked.half}`, {len(tools)} tools, {model.name}\n")
    print(table("mode", scores))


if __name__ == "__main__":
    main()
