"""How the demo model is spoken to: what other models bring along in their files is ours to give here."""

from __future__ import annotations

from pathlib import Path

from antwort.api.wire import UNSET, replace
from antwort.local.demo import DEMO, is_there
from antwort.providers.base import ChatRequest

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

PRESENCE_PENALTY = 1.5
"""Of free talk: without it the answer to "hi" is "Hihihihi" to the last token. Of 0.3 to 0.8 by frequency and 1.0 by
presence none helps; with more it wanders. What is held to a schema goes without, as calls were trained and measured:
there the same words are to be said again."""


def eased(request: ChatRequest) -> ChatRequest:
    """The request, kept from going round in circles where it is free to, and says nothing of that itself."""
    is_said = request.presence_penalty is not UNSET or request.frequency_penalty is not UNSET
    if is_said or request.response_format is not UNSET or request.tools is not UNSET:
        return request
    return replace(request, presence_penalty=PRESENCE_PENALTY)


def is_demo(model: Path) -> bool:
    """Whether the file is the demo model, wherever it lies."""
    return model.name == DEMO.file and is_there(model)


def tools_adapter() -> Path | None:
    """The LoRA adapter that teaches it to call tools, which comes with the package."""
    file = Path(__file__).with_name("smollm2-tools.gguf")
    return file if file.is_file() else None
