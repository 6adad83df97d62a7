"""One turn with the server: what is asked goes out, and the answer is fed as it comes."""

from __future__ import annotations

import time
from contextlib import aclosing

from antwort.chat.answer import Answer
from antwort.chat.client import Refused
from antwort.chat.conversation import Asked, Conversation
from antwort.chat.home import Home


async def receive(home: Home, conversation: Conversation, asked: Asked, answer: Answer) -> None:
    """Feed the answer to its end. Where the server has forgotten what was said, all of it is sent."""
    try:
        await _receive(home, conversation, asked, answer)
    except Refused as fault:
        if not conversation.forgotten(fault.code, fault.param):
            raise
        await _receive(home, conversation, asked, answer)


async def _receive(home: Home, conversation: Conversation, asked: Asked, answer: Answer) -> None:
    async with aclosing(home.client.frames(conversation.request(asked))) as frames:
        async for frame in frames:
            answer.feed(frame, time.monotonic())
            if answer.ended is not None:
                return
    answer.cut_off(time.monotonic())
