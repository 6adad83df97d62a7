"""Requests as clients send them, and as they should not: what stands for an id is filled in before it is sent."""

from __future__ import annotations

from itertools import chain
from typing import Any

from fuzz.backend import MODELS
from fuzz.values import Strategy, anything, deep, json_texts, maybe, numbers, short, texts
from hypothesis import strategies as st

RESPONSE, ITEM = "@response", "@item"
"""Stand for the id of a response that there is, and of an item of one: `@item:7` for the seventh, counted around."""
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
NAMES = ("alpha", "beta", "gamma.delta", "a-b_c", "clock", "x" * 128, "apply_patch")


def mapping(required: dict[str, Strategy], optional: dict[str, Strategy] | None = None) -> Strategy:
    return st.fixed_dictionaries(required, optional=optional or {})


names = st.sampled_from(NAMES)
statuses = st.sampled_from(["completed", "in_progress", "incomplete", None])


def there(what: str) -> Strategy:
    return st.one_of(st.integers(0, 50).map(lambda at: f"{what}:{at}"), short)


# ---- content ----

image = st.sampled_from(["data:image/png;base64,iVBORw0KGgo=", "https://example.org/a.png", "", "data:,"])
parts = st.one_of(
    mapping({"type": st.just("input_text"), "text": texts}),
    mapping({"type": st.just("output_text"), "text": texts}, {"annotations": st.just([]), "logprobs": st.just([])}),
    mapping({"type": st.just("input_image"), "image_url": image}, {"detail": st.sampled_from(["low", "auto", None])}),
    mapping({"type": st.just("image_url"), "image_url": mapping({"url": image})}),
    mapping(
        {"type": st.just("input_file")}, {"filename": texts, "file_data": image, "file_url": image, "file_id": short}
    ),
    mapping({"type": st.just("refusal"), "refusal": texts}),
    texts,
)
content = maybe(st.one_of(texts, st.lists(maybe(parts), max_size=3)))
output = maybe(st.one_of(texts, st.lists(parts, max_size=3)))

results = maybe(
    st.one_of(texts, st.lists(mapping({"type": st.just("input_text"), "text": texts}), max_size=3)), parts, odds=30
)

# ---- items ----

own_id = {"id": st.one_of(short, st.none()), "status": statuses}
messages = mapping(
    {"role": st.sampled_from(["user", "user", "assistant", "system", "developer"]), "content": content},
    {**own_id, "type": st.just("message"), "phase": st.sampled_from(["commentary", "final_answer", None])},
)
thoughts = mapping(
    {
        "type": st.just("reasoning"),
        "summary": st.lists(mapping({"type": st.just("summary_text"), "text": texts}), max_size=2),
    },
    {**own_id, "content": st.lists(texts, max_size=2), "encrypted_content": st.one_of(st.none(), short)},
)


@st.composite
def rounds(draw: st.DrawFn) -> list[Any]:
    """A call and its output, of one kind; now and then one of them alone."""
    call_id, name = draw(short), draw(names)
    kind = draw(st.sampled_from(["function", "custom", "mcp"]))
    if kind == "mcp":
        made = {"server_label": "demo", "name": name, "arguments": draw(json_texts)}
        return [{"type": "mcp_call", **made, **draw(mapping({}, {**own_id, "output": texts, "error": texts}))}]
    said = {"arguments": draw(json_texts)} if kind == "function" else {"input": draw(texts)}
    more = draw(mapping({}, {**own_id, "namespace": names}))
    asked = {"type": f"{kind}_call" if kind == "function" else "custom_tool_call", "call_id": call_id, "name": name}
    answered = {"type": f"{asked['type']}_output", "call_id": call_id, "output": draw(output)}
    pair = [{**asked, **said, **more}, {**answered, **draw(mapping({}, own_id))}]
    return draw(st.sampled_from([pair, pair, pair, pair[:1], pair[1:], [*pair, pair[1]]]))


listings = mapping(
    {"type": st.just("mcp_list_tools"), "server_label": st.just("demo")},
    {
        **own_id,
        "tools": st.lists(mapping({"name": names, "input_schema": st.just({})}, {"description": texts}), max_size=2),
    },
)
approvals = st.one_of(
    mapping({"type": st.just("mcp_approval_request"), "server_label": names, "name": names, "arguments": json_texts}),
    mapping({"type": st.just("mcp_approval_response"), "approval_request_id": short, "approve": st.booleans()}),
)
others = st.one_of(
    mapping({"type": st.just("item_reference"), "id": there(ITEM)}),
    mapping({"id": there(ITEM)}),
    mapping({"type": st.just("compaction"), "encrypted_content": texts}, own_id),
    mapping({"type": st.sampled_from(["web_search_call", "tool_search_call", "x"])}, {"id": short, "action": anything}),
    listings,
    approvals,
)
single = st.one_of(messages, messages, thoughts, others).map(lambda item: [item])
scenes = st.lists(st.one_of(single, rounds()), min_size=1, max_size=5).map(lambda lists: [*chain(*lists)])


@st.composite
def conversations(draw: st.DrawFn) -> list[Any]:
    """What a client sends that keeps all that was said: a question, calls with their outputs, some words, and so on."""
    made: list[Any] = [{"role": "user", "content": draw(texts)}]
    for _ in range(draw(st.integers(1, 3))):
        calls = draw(st.lists(st.tuples(names, json_texts, results), min_size=1, max_size=3))
        ids = [f"call_{len(made)}_{at}" for at in range(len(calls))]
        for call_id, (name, said, _) in zip(ids, calls, strict=True):
            made.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": said})
        for call_id, (_, _, answered) in draw(st.permutations([*zip(ids, calls, strict=True)])):
            made.append({"type": "function_call_output", "call_id": call_id, "output": answered})
        if draw(st.booleans()):
            made.append({"role": "assistant", "content": draw(texts)})
            made.append({"role": "user", "content": draw(texts)})
    return made


inputs = maybe(
    st.one_of(texts, st.lists(messages, min_size=1, max_size=2), scenes, scenes, conversations(), conversations())
)

# ---- tools ----

functions = mapping(
    {"type": st.just("function"), "name": names},
    {
        "description": st.one_of(st.none(), texts),
        "parameters": st.sampled_from(
            [None, {}, SCHEMA, {**SCHEMA, "$schema": "http://json-schema.org/draft-07/schema#"}]
        ),
        "strict": st.sampled_from([True, False, None]),
    },
)
grammars = st.sampled_from(
    [
        {"type": "text"},
        {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"},
        {"type": "grammar", "syntax": "lark", "definition": 'start: "a" /[0-9]+/'},
        {"type": "grammar", "syntax": "lark", "definition": "start: ("},
        {"type": "grammar", "syntax": "regex", "definition": "(a"},
    ]
)
customs = mapping({"type": st.just("custom"), "name": names}, {"description": texts, "format": grammars})
spaces = mapping(
    {"type": st.just("namespace"), "name": names, "tools": st.lists(st.one_of(functions, customs), max_size=3)},
    {"description": texts},
)
servers = mapping(
    {"type": st.just("mcp"), "server_label": st.sampled_from(["demo", "demo", "nobody"])},
    {
        "allowed_tools": st.sampled_from([["now"], [], None]),
        "require_approval": st.sampled_from(["never", "always", {}]),
    },
)
hosted = st.sampled_from(["web_search", "tool_search", "image_generation", "local_shell", "computer_use_preview", "x"])
tools = st.one_of(functions, functions, customs, spaces, servers, mapping({"type": hosted}, {"options": anything}))
sound_customs = mapping(
    {"type": st.just("custom"), "name": names},
    {"description": texts, "format": grammars.filter(lambda each: "(" not in each.get("definition", ""))},
)
sound_tools = st.one_of(functions, functions, sound_customs)
"""Those that nothing is wrong with, so that their calls come to something."""
choices = st.one_of(
    st.sampled_from(["auto", "none", "required"]),
    mapping({"type": st.sampled_from(["function", "custom"]), "name": names}, {"namespace": names}),
    mapping({"type": st.just("mcp"), "server_label": st.just("demo")}, {"name": names}),
    mapping({"type": hosted}),
    mapping(
        {
            "type": st.just("allowed_tools"),
            "tools": st.lists(mapping({"type": st.just("function"), "name": names}), max_size=2),
        },
        {"mode": st.sampled_from(["auto", "required"])},
    ),
)

# ---- the whole ----

formats = st.sampled_from(
    [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}]
)
FIELDS: dict[str, Strategy] = {
    "model": maybe(st.sampled_from(MODELS), st.sampled_from(["nobody", "", "a/b", None]), odds=20),
    "input": inputs,
    "stream": maybe(st.booleans()),
}
OPTIONAL: dict[str, Strategy] = {
    "tools": maybe(st.lists(tools, max_size=4)),
    "tool_choice": maybe(choices),
    "allowed_tools": maybe(st.lists(names, max_size=2)),
    "instructions": maybe(texts),
    "previous_response_id": maybe(there(RESPONSE), st.none()),
    "store": maybe(st.booleans()),
    "include": maybe(st.just(["reasoning.encrypted_content", "message.output_text.logprobs"])),
    "reasoning": maybe(st.sampled_from([{"summary": "auto"}, {"effort": "low", "summary": "detailed"}, {}])),
    "text": maybe(mapping({}, {"format": formats, "verbosity": st.sampled_from(["low", None])})),
    "metadata": maybe(st.dictionaries(texts, texts, max_size=3)),
    "max_output_tokens": maybe(st.integers(1, 1000), numbers),
    "max_tool_calls": maybe(st.integers(1, 3), numbers),
    "max_turns": maybe(st.integers(1, 10), numbers),
    "deadline": maybe(st.floats(0.01, 600), numbers),
    "token_budget": maybe(st.integers(1, 5_000_000), numbers),
    "temperature": maybe(st.floats(0, 2), numbers),
    "top_p": maybe(st.floats(0, 1), numbers),
    "top_logprobs": maybe(st.integers(0, 5), numbers),
    "parallel_tool_calls": maybe(st.booleans()),
    "truncation": maybe(st.sampled_from(["auto", "disabled"])),
    "background": maybe(st.just(False)),
    "prompt_cache_key": maybe(short),
    "service_tier": maybe(st.sampled_from(["auto", "flex"])),
    "client_metadata": anything,
    "nobody_knows_this": st.one_of(anything, deep),
}


@st.composite
def _bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A request with a few of the fields that it need not have."""
    body: dict[str, Any] = draw(mapping(FIELDS))
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(sound_tools, min_size=1, max_size=3, unique_by=lambda tool: tool["name"]))
    for name in draw(st.lists(st.sampled_from([*OPTIONAL]), max_size=6, unique=True)):
        body[name] = draw(OPTIONAL[name])
    return body


bodies = _bodies()
