"""A provider of your own: whatever can answer a chat, here one that says everything backwards.

python examples/custom_provider.py

prints:
    models: mirror
    completed: rorrim eht ni olleH (5 tokens)
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from antwort import Engine
from antwort.api.responses import Model, Usage
from antwort.providers.base import Capabilities, ChatRequest, Delta, Finished, TextDelta


class Mirror:
    """One inference is a stream of lists of deltas: what came of one read. The last delta says how it ended."""

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        yield []  # the backend has answered; until then a failure would be an HTTP error
        words = str(request.messages[-1].content)[::-1].split(" ")
        for at, word in enumerate(words):
            yield [TextDelta(word if at == 0 else f" {word}")]
        yield [Finished("stop", Usage(input_tokens=1, output_tokens=len(words), total_tokens=1 + len(words)))]

    async def models(self) -> Sequence[Model]:
        return [Model(id="mirror")]

    def capabilities(self, model: str) -> Capabilities:
        """What the backend takes: pictures, files, a `developer` role and so on."""
        return Capabilities()

    async def check(self) -> None:
        """Raise a `BackendError` when it is not well."""

    async def close(self) -> None:
        """Let go of what it holds."""


async def main() -> None:
    async with Engine(Mirror()) as engine:
        print("models:", ", ".join(model.id for model in await engine.models()))
        response = await engine.create(input="Hello in the mirror")
        tokens = response.usage.total_tokens if response.usage else 0
        print(f"{response.status}: {response.output_text} ({tokens} tokens)")


if __name__ == "__main__":
    asyncio.run(main())
