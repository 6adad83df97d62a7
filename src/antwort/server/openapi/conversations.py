"""The operations on conversations, in words."""

from __future__ import annotations

from antwort.api.wire import Plain
from antwort.server.openapi.operation import LISTED, READ, Operation, as_json

_ID = "conversation"
_WRITTEN = (413, 415)
_HELLO: Plain = {"role": "user", "content": "Hello"}

OF_CONVERSATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/conversations"): Operation(
        name="createConversation",
        tag="Conversations",
        summary="Begin a conversation",
        description="Requests that name it in `conversation` are its turns.",
        body="CreateConversation",
        examples={
            "With nothing said": {},
            "With a first message": {"items": [_HELLO], "metadata": {"topic": "weather"}},
        },
        answers=as_json("The conversation.", "Conversation"),
        errors=(403, 404, *_WRITTEN, *READ),
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        name="getConversation",
        tag="Conversations",
        summary="Read a conversation",
        parameters=(_ID,),
        answers=as_json("The conversation; its items are listed apart.", "Conversation"),
        errors=(403, 404, *READ),
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        name="updateConversation",
        tag="Conversations",
        summary="Change the metadata of a conversation",
        description="What it had before is replaced, all of it.",
        parameters=(_ID,),
        body="UpdateConversation",
        examples={"A topic": {"metadata": {"topic": "travel"}}},
        answers=as_json("The conversation.", "Conversation"),
        errors=(403, 404, *_WRITTEN, *READ),
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        name="deleteConversation",
        tag="Conversations",
        summary="Delete a conversation",
        description="Its items go with it. Responses that were its turns stay.",
        parameters=(_ID,),
        answers=as_json("It is gone.", "ConversationDeleted"),
        errors=(403, 404, *READ),
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        name="listConversationItems",
        tag="Conversations",
        summary="List the items of a conversation",
        description="A page of large items may end early: `has_more` tells.",
        parameters=(_ID, *LISTED),
        answers=as_json("A part of its items.", "ItemList"),
        errors=(403, 404, *READ),
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        name="addConversationItems",
        tag="Conversations",
        summary="Add items to a conversation",
        description="At its end, in this order and with nothing between them. An item keeps its id unless another one"
        " there has it; for a reference, a copy of what it stands for is added.",
        parameters=(_ID,),
        body="AddItems",
        examples={"A message": {"items": [_HELLO]}},
        answers=as_json("The items, with the ids that they have there.", "ItemList"),
        errors=(403, 404, *_WRITTEN, *READ),
    ),
    ("GET", "/v1/conversations/{id}/items/{item_id}"): Operation(
        name="getConversationItem",
        tag="Conversations",
        summary="Read an item of a conversation",
        parameters=(_ID, "item"),
        answers=as_json("The item.", "Item"),
        errors=(403, 404, *READ),
    ),
    ("DELETE", "/v1/conversations/{id}/items/{item_id}"): Operation(
        name="deleteConversationItem",
        tag="Conversations",
        summary="Take an item out of a conversation",
        parameters=(_ID, "item"),
        answers=as_json("The conversation without it.", "Conversation"),
        errors=(403, 404, *READ),
    ),
}
