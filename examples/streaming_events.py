"""Every event of a response that reasons, calls a tool and answers, as a program sees them.

python examples/streaming_events.py

prints:
    the response has begun
    it thinks: 'Better'
    it thinks: ' look.'
    it calls population({"city":"Paris"})
    the tool answered 2100000
    it says: 'Two'
    it says: ' million.'
    completed, 75 tokens
"""

import asyncio
from contextlib import aclosing

from antwort import Engine, LocalExecutor, StreamEvent, tool
from antwort.api.events import (
    OutputItemDone,
    OutputTextDelta,
    ReasoningTextDelta,
    ResponseCompleted,
    ResponseCreated,
)
from antwort.api.items import FunctionCall, FunctionCallOutput
from antwort.testing import ScriptedProvider, answer, call, say, think, tokens


@tool
def population(city: str) -> int:
    """How many people live in a city."""
    return {"Paris": 2_100_000}[city]


def told(event: StreamEvent) -> str | None:
    match event:
        case ResponseCreated():
            return "the response has begun"
        case ReasoningTextDelta(delta=text):
            return f"it thinks: {text!r}"
        case OutputItemDone(item=FunctionCall(name=name, arguments=arguments)):
            return f"it calls {name}({arguments})"
        case OutputItemDone(item=FunctionCallOutput(output=output)):
            return f"the tool answered {output}"
        case OutputTextDelta(delta=text):
            return f"it says: {text!r}"
        case ResponseCompleted(response=response):
            return f"{response.status}, {response.usage.total_tokens if response.usage else 'unknown'} tokens"
        case _:
            return None  # beginnings and ends of items and parts, and whole texts that the deltas told already


async def main() -> None:
    provider = ScriptedProvider(
        answer(think("Better look."), call("population", city="Paris"), usage=tokens(20, 10)),
        answer(say("Two million."), usage=tokens(40, 5)),
    )
    async with Engine(provider, executors=[LocalExecutor(population)]) as engine:
        request = {"input": "How many live in Paris?", "tools": [{"type": "function", "name": "population"}]}
        async with aclosing(engine.respond(request)) as events:
            async for event in events:
                if line := told(event):
                    print(line)


if __name__ == "__main__":
    asyncio.run(main())
