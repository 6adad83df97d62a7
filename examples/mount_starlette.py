"""The Responses API as a part of a Starlette application, from settings as the server has them.

python examples/mount_starlette.py

prints:
    models: scripted
    deltas: You| said:| Hello

`uvicorn mount_starlette:app`, run in the folder of this file, serves it until you stop it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai import OpenAI
from starlette.applications import Starlette
from starlette.routing import Mount

from antwort import Settings
from antwort.asgi import create_app
from loopback import serving

# `create_app()` reads antwort.yaml and the environment, `create_app("my.yaml")` another file.
ai = create_app(Settings(scripted=True, memory=True))


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Where the application has parts of its own to start, ours is one of them."""
    async with ai.lifespan():
        yield


app = Starlette(routes=[Mount("/ai", app=ai)], lifespan=lifespan)


def main() -> None:
    with serving(app) as url, OpenAI(base_url=f"{url}/ai/v1", api_key="none") as client:
        print("models:", ", ".join(model.id for model in client.models.list()))
        stream = client.responses.create(model="scripted", input="Hello", stream=True)
        print("deltas:", "|".join(event.delta for event in stream if event.type == "response.output_text.delta"))


if __name__ == "__main__":
    main()
