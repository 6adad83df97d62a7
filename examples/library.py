"""Ask the engine from Python: the response whole, its events one by one, and a follow-up that remembers.

python examples/library.py

prints:
    completed: Paris.
    deltas: 'About' ' two' ' million.'
    the model was shown: user, assistant, user
"""

import asyncio
from contextlib import aclosing

from antwort import Engine
from antwort.api.events import OutputTextDelta
from antwort.testing import ScriptedProvider, answer, say


async def main() -> None:
    # A script in place of a model; with a real one it is `ChatProvider("http://localhost:8000/v1")`.
    provider = ScriptedProvider(answer(say("Paris.")), answer(say("About two million.")))
    async with Engine(provider) as engine:
        first = await engine.create(input="What is the capital of France?")
        print(f"{first.status}: {first.output_text}")

        # Leaving the loop early ends the response; closing the generator sees to it at once.
        async with aclosing(engine.respond(input="How many live there?", previous_response_id=first.id)) as events:
            deltas = [repr(event.delta) async for event in events if isinstance(event, OutputTextDelta)]
        print("deltas:", *deltas)

    print("the model was shown:", ", ".join(message.role for message in provider.requests[1].messages))


if __name__ == "__main__":
    asyncio.run(main())
