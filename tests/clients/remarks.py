"""What must be known of a cell of the table beside its marks: footnotes."""

from __future__ import annotations

_NODE_TIMER = (
    "the client has no idle timer of its own: tried is that of Node's `fetch`, which gives a stream up after five"
    " minutes without a byte"
)
_NAME = "for a model whose name the client knows, here `gpt-5.5`"
_REASONS = "for a model whose name the client knows as that of one that reasons, here `gpt-5.5`"

REMARKS: dict[tuple[str, str], str] = {
    ("openai-node", "slow-tool"): _NODE_TIMER,
    ("@ai-sdk/openai", "slow-tool"): (
        f"{_NODE_TIMER}. The `timeout` of `streamText` with `firstChunkMs` or `chunkMs` is another thing: it counts the"
        " SDK's own parts, and signs of life make none, so set it longer than the slowest tool"
    ),
    ("codex", "slow-tool"): (
        "the server's toolset stands in for Codex's web search there (`tools.hosted`); with no signs of life Codex"
        " gives up, which is tried, too"
    ),
    ("codex", "websocket"): "with `supports_websockets = true` for the provider: see [Codex](../how-to/codex.md)",
    ("codex", "compaction"): (
        "by a question of Codex's own; where the provider's `name` is `OpenAI`, by a `compaction_trigger`, which is"
        " tried, too, also over a WebSocket"
    ),
    ("openai-agents", "compaction"): f"by the SDK's `OpenAIResponsesCompactionSession`, {_NAME}: it takes no other",
    ("@ai-sdk/openai", "conversation"): "made by a request of one's own: the SDK only goes on with it",
    ("@ai-sdk/openai", "compaction"): "by a trigger (`compactionTrigger`)",
    ("pydantic-ai", "toolset"): f"{_NAME}: to others it sends nothing of the server's calls, only the answer",
    ("pydantic-ai", "reasoning"): "as a summary, only for a model whose name the client knows, here `gpt-5.5`",
    ("pydantic-ai", "sealed-reasoning"): _REASONS,
    ("@ai-sdk/openai", "sealed-reasoning"): _REASONS,
    ("@ai-sdk/openai", "reasoning"): (
        "with `forceReasoning`, as the SDK does not know the model's name, and a summary asked for"
    ),
    ("codex", "apply-patch"): f"{_NAME}: to others it does not offer `apply_patch`",
    ("codex", "additional-tools"): "the model is called `gpt-6-sol`; for names that it does not know it sends `tools`",
    ("codex", "custom-tool"): f"{_NAME}: to others it does not offer `apply_patch`",
    **{
        ("@ai-sdk/open-responses", case): (
            "where an error has no `param`, the client's own message is only the status (it wants a text there, and the"
            " standard has null); what the server says is in `responseBody`"
        )
        for case in ("unknown-model", "bad-request", "backend-429", "backend-500")
    },
}
"""By client and case."""
