"""What a struct cannot say of its fields, in words."""

from __future__ import annotations

FIELDS = {
    "input": "What the model is to answer: a text, or items: messages, calls, results, reasoning, references. Can"
    " be left out where there are `instructions`, or a response to go on from.",
    "tools": "What the model may call.",
    "tool_choice": "Whether it may call, must call, or must call a certain one. Left out: `auto`.",
    "allowed_tools": "Ours: the calls that are carried out; others are refused. A name stands for a function.",
    "conversation": "The conversation that this is a turn of: its items come before the input, and input and output"
    " are added to it. By its id, or as an object with that; not together with `previous_response_id`.",
    "prompt": "Not offered: send `instructions` and `input`.",
    "model": "The model that answers. Can be left out where there is a default, or only one.",
    "previous_response_id": "The stored response that this one goes on from.",
    "include": "What else is wanted in the output, such as `reasoning.encrypted_content`. Ours: `mcp_call.progress`.",
    "metadata": "Kept with the response and given back: short texts under keys of 64 characters at most.",
    "text": "How the text of the answer is written: free, JSON, or JSON after a schema.",
    "temperature": "How freely the model chooses its words.",
    "top_p": "The share of likely words that it chooses from.",
    "presence_penalty": "How much what was said before is avoided.",
    "frequency_penalty": "The same, by how often it was said.",
    "parallel_tool_calls": "Whether one turn may hold several calls. Left out: it may.",
    "stream": "Whether the answer is a stream of events. Left out: it is not.",
    "stream_options": "Taken, and not looked at.",
    "background": "Whether the response is made in the background: the answer says `queued` at once. It must be"
    " stored.",
    "max_output_tokens": "The most tokens that the model may write for this response.",
    "max_tool_calls": "The most calls that are carried out for this response; more than the server allows is as many as"
    " it does.",
    "max_turns": "Ours: how often the model is asked for this response, at most. Only less than the server allows.",
    "deadline": "Ours: the seconds that the response may take. Only less than the server allows.",
    "token_budget": "Ours: the tokens that all inferences of the response may take together, read and written. Only"
    " less than the server allows.",
    "reasoning": "How much the model thinks, and whether a summary of it is wanted.",
    "safety_identifier": "Your word for the person behind the request; given back.",
    "prompt_cache_key": "Requests with the same key have much in common; passed on to backends that take it.",
    "truncation": "What happens where the input is longer than the model's context. `auto`: long results of tools are"
    " shortened and the oldest turns left out, with a note to the model; `disabled`: the request is refused. Left out:"
    " as the server is set.",
    "instructions": "What the model is told first. Holds for this response only.",
    "store": "Whether the response is kept, to be read again and gone on from. Left out: it is.",
    "service_tier": "Given back; there is one tier, `default`, and that is what `auto` gives.",
    "top_logprobs": "How many likely tokens are told for each token of the answer.",
    "user": "An older word for the person behind the request; passed on, and given back.",
    "context_management": "What is done when the context grows. With an entry of type `compaction`, what was said is"
    " summed up before the model is asked with `compact_threshold` tokens or more.",
    "generate": "False: the response ends at once and is empty, to be gone on from. Left out: the model answers.",
}
"""The fields of a request."""
