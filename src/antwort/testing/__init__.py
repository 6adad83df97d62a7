"""Working fakes and checks, for tests of antwort and of programs that use it.

`ScriptedProvider` plays a script instead of asking a model; `ToolServerFake` is a labelled tool server of plain
functions; `StreamChecker` and `check_frames` check one stream against the grammar, `check_streams` those of every
engine in the process; `ExecutorContract` is the suite that any executor must pass.
"""

from antwort.testing.demo import DEMO_MODEL, DemoProvider, demo_provider
from antwort.testing.executors import ClaimContract, ExecutorContract
from antwort.testing.grammar import GrammarError, StreamChecker, check_frames
from antwort.testing.scripted import Answer, Piece, ScriptedProvider, answer, call, refuse, say, think, tokens
from antwort.testing.servers import ToolServerFake
from antwort.testing.stream_checks import check_streams

__all__ = [
    "DEMO_MODEL",
    "Answer",
    "ClaimContract",
    "DemoProvider",
    "ExecutorContract",
    "GrammarError",
    "Piece",
    "ScriptedProvider",
    "StreamChecker",
    "ToolServerFake",
    "answer",
    "call",
    "check_frames",
    "check_streams",
    "demo_provider",
    "refuse",
    "say",
    "think",
    "tokens",
]
