"""How the demo model is spoken to: what other models bring along in their files is ours to give here."""

from __future__ import annotations

from pathlib import Path

from antwort.local.demo import DEMO, is_there

ABOUT = "a 135M demo model, often wrong"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML and no more: with the template in its own file, which adds a system prompt, it talks nonsense."""
TEMPERATURE = 0.0
"""So small a model loses the thread when it is left any freedom."""
LONGEST_ANSWER = 512
"""Tokens; now and then it does not find an end by itself."""


def is_demo(model: Path) -> bool:
    """Whether the file is the demo model, wherever it lies."""
    return model.name == DEMO.file and is_there(model)


def tools_adapter() -> Path | None:
    """The LoRA adapter that teaches it to call tools, which comes with the package."""
    file = Path(__file__).with_name("smollm2-tools.gguf")
    return file if file.is_file() else None
