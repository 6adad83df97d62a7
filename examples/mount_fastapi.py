"""The Responses API as a part of your own FastAPI application.

python examples/mount_fastapi.py

prints:
    GET /: The Responses API is under /ai/v1.
    POST /ai/v1/responses: You said: Hello
    ada sees her response, bob is told: No response with id 'resp_…'.

`uvicorn mount_fastapi:app`, run in the folder of this file, serves it until you stop it.
"""

import urllib.request

import openai
from fastapi import FastAPI
from openai import OpenAI

from antwort import Engine, Identity
from antwort.asgi import create_app
from antwort.errors import NotAuthenticated
from antwort.server.exchange import Scope
from antwort.testing import DemoProvider
from loopback import serving


def by_user(scope: Scope) -> Identity:
    """For whom a request is made: here a header says so, in earnest your own login would."""
    user = dict(scope["headers"]).get(b"x-user")
    if user is None:
        raise NotAuthenticated("Say who you are.")
    return Identity(owner=user.decode())


ai = create_app(Engine(DemoProvider()), identify=by_user)
app = FastAPI(lifespan=ai.lifespan)  # it starts with your application, and what is under way ends before it stops
app.mount("/ai", ai)


@app.get("/")
def home() -> str:
    return "The Responses API is under /ai/v1."


def main() -> None:
    with serving(app) as url:
        with urllib.request.urlopen(f"{url}/") as reply:
            print("GET /:", reply.read().decode().strip('"'))
        with OpenAI(base_url=f"{url}/ai/v1", api_key="none") as client:
            ada, bob = (client.with_options(default_headers={"X-User": name}) for name in ("ada", "bob"))
            made = ada.responses.create(model="scripted", input="Hello")
            print("POST /ai/v1/responses:", made.output_text)
            assert ada.responses.retrieve(made.id).output_text == made.output_text
            try:
                bob.responses.retrieve(made.id)
            except openai.NotFoundError as error:
                told = error.body["message"] if isinstance(error.body, dict) else error.message
                print("ada sees her response, bob is told:", told)


if __name__ == "__main__":
    main()
