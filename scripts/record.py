"""Record a chat in a real pseudo-terminal, as a picture and as text: `python scripts/record.py OUT.svg QUESTION …`.

Runs `antwort chat` with the rest of the environment as it is; the last screen is what is kept.
"""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

WIDTH, HEIGHT = 84, 44
PATIENCE = 120.0
PROMPT = "\u203a"
NAMES = {"brown": "yellow", "brightbrown": "bright_yellow"}


def record(questions: list[str]) -> pyte.Screen:
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    child = pexpect.spawn("antwort", ["chat"], dimensions=(HEIGHT, WIDTH), timeout=PATIENCE)
    _until(child, stream, screen, prompts=1)
    for number, question in enumerate(questions, start=2):
        child.send(question + "\r")
        _until(child, stream, screen, prompts=number)
    child.sendeof()
    return screen


def _until(child: pexpect.spawn, stream: pyte.ByteStream, screen: pyte.Screen, prompts: int) -> None:
    """Until so many prompts are on the screen, the last of them empty."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            stream.feed(child.read_nonblocking(65536, timeout=1))
        except pexpect.TIMEOUT:
            lines = [line.rstrip() for line in screen.display]
            if sum(line.startswith(PROMPT) for line in lines) >= prompts and PROMPT in lines:
                return
    raise SystemExit("\n".join(screen.display))


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name):
        return f"#{name}"
    known = NAMES.get(name, name)
    return known.replace("bright", "bright_") if known.startswith("bright") and "_" not in known else known


def drawn(screen: pyte.Screen) -> Text:
    last = max(number for number, line in enumerate(screen.display) if line.strip())
    text = Text()
    for row in range(last + 1):
        for column in range(WIDTH):
            cell = screen.buffer[row][column]
            style = Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, italic=cell.italics)
            text.append(cell.data, style)
        text.append("\n")
    return text


def main() -> None:
    out, *questions = sys.argv[1:]
    screen = record(questions)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(drawn(screen), end="")
    # The picture is to fetch nothing: the reader's own font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="antwort chat"), flags=re.DOTALL)
    Path(out).write_text(picture.replace("Fira Code", "monospace"), encoding="utf-8")
    print("\n".join(line.rstrip() for line in screen.display).rstrip())


if __name__ == "__main__":
    main()
