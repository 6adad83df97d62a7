"""Every operation there is, in words: what it is for, what it takes, and how it can end.

`document.py` makes the document of it. A route that has no row here is described by its address alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from antwort.api.wire import Plain
from antwort.server.description import Offer
from antwort.server.openapi.approvals import OF_APPROVALS
from antwort.server.openapi.conversations import OF_CONVERSATIONS
from antwort.server.openapi.operation import JSON, LISTED, READ, Answered, Operation, as_json
from antwort.server.openapi.parts import QUOTA
from antwort.server.openapi.sockets import IN_A_SENTENCE

EVENTS = "text/event-stream"
HTML = "text/html"
METRICS = ("text/plain", "application/openmetrics-text")

KEY, REPLAYED = "Idempotency-Key", "Idempotent-Replayed"
_PAGE = ("ETag", "Cache-Control", "Content-Security-Policy", "X-Content-Type-Options")
_ASKED = (502, 503, 504)


TAGS = {
    "Responses": "Answers of a model, with the tools that it called on the way. What is stored is its owner's alone.",
    "Conversations": "Items that stay together under one id, for any number of requests. Not in the standard.",
    "Approvals": "Calls that are run only when the client says so. Not in the standard.",
    "Models": "What can be asked.",
    "Tools": "What can be called here.",
    "Server": "The server itself. Open to all, but for the metrics where keys are asked for.",
}
_HELLO: Plain = {"model": "MODEL", "input": "Say hello."}
_WEATHER: Plain = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

_CREATE = Operation(
    name="createResponse",
    tag="Responses",
    summary="Ask for a response",
    description=(
        "The model answers, and calls tools. Those that run here are run, and the model goes on with their results;"
        " calls that are the client's to run end the response, and their results come in with the next request.\n\n"
        "With `stream` the answer is a stream of events. What goes wrong before the first of them has a status of its"
        " own; what goes wrong later ends the stream with `response.failed`."
    ),
    parameters=(KEY, "Antwort-On-Disconnect"),
    body="CreateResponse",
    examples={
        "A question": _HELLO,
        "A question, streamed": {**_HELLO, "stream": True},
        "A function that the client runs": {**_HELLO, "input": "Is it warm in Rome?", "tools": [_WEATHER]},
        "JSON after a schema": {
            **_HELLO,
            "input": "Rome has 2.8 million people.",
            "text": {"format": {"type": "json_schema", "name": "city", "schema": {"type": "object"}}},
        },
    },
    answers={
        200: Answered(
            "The response. With `stream`, its events: each frame has an `event:` line with the type and a `data:` line"
            " with the JSON of one `StreamEvent`; lines that begin with a colon are comments; the last frame is"
            " `data: [DONE]`.",
            {JSON: "Response", EVENTS: "StreamEvent"},
            (REPLAYED, "Cache-Control", "X-Accel-Buffering", *QUOTA),
        )
    },
    errors=(403, 404, 409, 413, 415, 429, *READ, *_ASKED),
)
_COMPACT = Operation(
    name="compactResponse",
    tag="Responses",
    summary="Compact a conversation",
    description=(
        "The model sums up what was said. What goes on from it begins its `input` with the `output`, without a"
        " `previous_response_id`: an item of type `compaction`, which only this server can read and only for you, and"
        " the latest turns word for word. Nothing of it is stored."
    ),
    body="CompactResponse",
    examples={
        "A conversation": {
            "model": "MODEL",
            "input": [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "Hello."}],
        }
    },
    answers={200: Answered("The conversation in less room.", {JSON: "CompactedResponse"}, QUOTA)},
    errors=(403, 404, 409, 413, 415, 429, *READ, *_ASKED),
)
_COUNT = Operation(
    name="countInputTokens",
    tag="Responses",
    summary="Count the tokens of an input",
    description=(
        "How many tokens the model would get to read if a response was asked for with this body: by the backend's own"
        " tokenizer where it has one, else by an estimate that learns. With `truncation: auto`, of what would be sent."
        " Nothing is stored, and the model is not asked."
    ),
    body="CreateResponse",
    examples={"A question": _HELLO},
    answers={200: Answered("The number of tokens.", {JSON: "InputTokens"}, QUOTA)},
    errors=(403, 404, 409, 413, 415, 429, *READ, *_ASKED),
)
_OF_A_RESPONSE: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/responses/{id}"): Operation(
        name="getResponse",
        tag="Responses",
        summary="Read a response",
        description=(
            "A response that is stored, as it stands: of one that runs, what there is so far.\n\n"
            "With `stream`, its events, as they were or would have been sent to who asked for it: a stream that broke"
            " off is picked up behind the event that `starting_after` names. Of a response that was not streamed, or"
            " ended long ago, there are events from the beginning only."
        ),
        parameters=("id", "stream", "starting_after"),
        answers={
            200: Answered(
                "The response; with `stream`, its events.",
                {JSON: "Response", EVENTS: "StreamEvent"},
                ("Cache-Control", "X-Accel-Buffering"),
            )
        },
        errors=(403, 404, *READ),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        name="deleteResponse",
        tag="Responses",
        summary="Delete a response",
        description="One that runs is cancelled first. Its items can no longer be referred to.",
        parameters=("id",),
        answers=as_json("It is gone.", "Deleted"),
        errors=(403, 404, *READ),
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        name="cancelResponse",
        tag="Responses",
        summary="Cancel a response",
        description="One that runs or waits is ended; one that has ended is unchanged.",
        parameters=("id",),
        answers=as_json("The response as it ended.", "Response"),
        errors=(403, 404, *READ),
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        name="listInputItems",
        tag="Responses",
        summary="List the input of a response",
        parameters=("id", *LISTED),
        answers=as_json("A part of its input items.", "ItemList"),
        errors=(403, 404, *READ),
    ),
}
_OF_MODELS_AND_TOOLS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/models"): Operation(
        name="listModels",
        tag="Models",
        summary="List the models",
        answers=as_json("Those that you may use.", "ModelList"),
        errors=(403, *READ, *_ASKED),
    ),
    ("GET", "/v1/models/{name}"): Operation(
        name="getModel",
        tag="Models",
        summary="Read a model",
        parameters=("name",),
        answers=as_json("The model.", "Model"),
        errors=(403, 404, *READ, *_ASKED),
    ),
    ("GET", "/v1/toolsets"): Operation(
        name="listToolsets",
        tag="Tools",
        summary="List the tools of this server",
        description="What a request reaches with a tool of type `mcp` and one of these labels. Not in the standard.",
        answers=as_json("The toolsets, each as a request would be shown it.", "ToolsetList"),
        errors=(403, *READ),
    ),
}
_OF_THE_SERVER: dict[tuple[str, str], Operation] = {
    ("GET", "/healthz"): Operation(
        name="getHealth",
        tag="Server",
        summary="Whether the process answers",
        answers=as_json("It does.", "Health"),
        errors=READ,
        is_open=True,
    ),
    ("GET", "/readyz"): Operation(
        name="getReadiness",
        tag="Server",
        summary="Whether the server can work",
        answers={
            200: Answered("It can.", {JSON: "Readiness"}),
            503: Answered("A part is missing, or the server is being stopped.", {JSON: "Readiness"}),
        },
        errors=(500,),
        is_open=True,
    ),
    ("GET", "/metrics"): Operation(
        name="getMetrics",
        tag="Server",
        summary="Numbers for Prometheus",
        description="In Prometheus' own format, or as OpenMetrics for those who accept it.",
        answers={200: Answered("The metrics.", dict.fromkeys(METRICS, ""))},
        errors=(401, 403, 404, *READ),
        is_open=True,
    ),
    ("GET", "/openapi.json"): Operation(
        name="getOpenapi",
        tag="Server",
        summary="This document",
        parameters=("If-None-Match",),
        answers={
            200: Answered("The document.", {JSON: "Document"}, ("ETag", "Cache-Control")),
            304: Answered("You have it already.", {}, ("ETag", "Cache-Control")),
        },
        errors=READ,
        is_open=True,
    ),
    ("GET", "/docs"): Operation(
        name="getDocs",
        tag="Server",
        summary="This document, as a page",
        parameters=("If-None-Match",),
        answers={
            200: Answered("The page.", {HTML: ""}, _PAGE),
            304: Answered("You have it already.", {}, _PAGE),
        },
        errors=READ,
        is_open=True,
    ),
}
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses"): _CREATE,
    ("POST", "/v1/responses/input_tokens"): _COUNT,
    ("POST", "/v1/responses/compact"): _COMPACT,
    ("GET", "/v1/responses"): Operation(
        name="listResponses",
        tag="Responses",
        summary="List your responses",
        description="Those that are stored, the newest first. Not in the standard.",
        parameters=(*LISTED, "model", "status"),
        answers=as_json("A part of them.", "ResponseList"),
        errors=(403, *READ),
    ),
    **_OF_A_RESPONSE,
    **OF_CONVERSATIONS,
    **OF_APPROVALS,
    **_OF_MODELS_AND_TOOLS,
    **_OF_THE_SERVER,
}


_ENDS = {
    "status": "Exactly one of `response.completed`, `response.incomplete` and `response.failed` ends the stream, and"
    " carries the whole response. One that waits for the client's calls has the status `requires_action` in"
    " `response.completed`.",
    "completed": "Exactly one of `response.completed`, `response.incomplete` and `response.failed` ends the stream, and"
    " carries the whole response.",
    "event": "Exactly one of `response.completed`, `response.requires_action`, `response.incomplete` and"
    " `response.failed` ends the stream, and carries the whole response. `response.requires_action` ends one that waits"
    " for the client's calls.",
}
"""By the setting for it, how a stream ends."""


_LATER = (
    "With `background` the answer comes at once, and says `queued`; the response is made afterwards, whoever is there"
    " to read it. Read it by its id as it stands, or its events from any of them on, and cancel it when it is not"
    " wanted any more."
)
"""What can be asked for where responses are made in the background."""


def as_offered(row: Operation, offer: Offer) -> Operation:
    """The row with what holds for this server, and nothing that does not."""
    left_out = {*(() if offer.remembers_keys else (KEY, REPLAYED)), *(() if offer.tells_quotas else QUOTA)}
    answers = {status: _with_headers_but(answer, left_out) for status, answer in row.answers.items()}
    about = row.description
    if row is _CREATE:
        about = f"{about}\n\n{_LATER}" if offer.background else about
        about = f"{about}\n\n{IN_A_SENTENCE}" if offer.websocket else about
        whole = answers[200]
        answers[200] = replace(whole, about=f"{whole.about} {_ENDS[offer.requires_action]}")
    parameters = tuple(name for name in row.parameters if name not in left_out)
    errors = tuple(min(status, 500) for status in row.errors) if offer.strict else row.errors
    return replace(row, description=about, parameters=parameters, answers=answers, errors=errors)


def _with_headers_but(answer: Answered, left_out: set[str]) -> Answered:
    return replace(answer, headers=tuple(name for name in answer.headers if name not in left_out))


def unknown(method: str, address: str) -> Operation:
    """For a route that somebody has added."""
    words = [word for word in address.replace("{", "").replace("}", "").replace(".", "/").split("/") if word]
    name = method.lower() + "".join(word.title() for word in words)
    anything = {200: Answered("An answer.", {"*/*": ""})}
    about = "Added by the program that this server is a part of."
    return Operation(name=name, tag="Server", summary=address, description=about, answers=anything, is_open=True)
