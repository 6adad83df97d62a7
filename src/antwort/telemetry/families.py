"""All metrics. Names, labels and buckets follow OpenTelemetry's conventions (GenAI, HTTP) where they have
one, in Prometheus' spelling; what they do not know is called `antwort_…`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Family(msgspec.Struct, frozen=True):
    """The name, meaning and labels of a metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets. The last bucket has none."""


# ---- buckets ----

# The conventions end at 82 and at 10 seconds. A response may take `loop.deadline`: 600 seconds, or what it is set to.
_OPERATION = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    *(163.84, 327.68, 655.36, 1310.72, 3600.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 3600.0),
)
_HTTP = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 300.0, 660.0, 1320.0, 3600.0),
)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_TURNS = (1, 2, 4, 8, 16, 32, 64, 128, 1024, 10_000)
_WAITS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
_STORE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

# ---- requests ----

REQUESTS = Family(
    "http_server_request_duration_seconds",
    "histogram",
    "Time from a request's head to the end of its answer.",
    ("http_request_method", "http_route", "http_response_status_code"),
    _HTTP,
)
ACTIVE = Family("http_server_active_requests", "gauge", "Requests that are being answered.")
STREAMS = Family("antwort_streams_open", "gauge", "Streams that are open.")
SOCKETS = Family("antwort_websockets_open", "gauge", "WebSocket connections that are open.")
REQUEST_ERRORS = Family(
    "antwort_request_errors_total", "counter", "Requests that were answered with an error, by its code.", ("code",)
)
KEY_LIMITS = Family(
    "antwort_key_limits_total", "counter", "Requests that were refused because of a limit of their API key.", ("key",)
)

# ---- responses ----

RESPONSES = Family(
    "antwort_responses_total",
    "counter",
    "Responses that have ended, by their status and, where they are incomplete, the reason.",
    ("status", "reason"),
)
RESPONSE_TIME = Family(
    "gen_ai_server_request_duration_seconds",
    "histogram",
    "Time from the start of a response to its end, tool calls included.",
    ("gen_ai_operation_name", "gen_ai_request_model", "error_type"),
    _OPERATION,
)
FIRST_TOKEN = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "histogram",
    "Time from the start of a streamed response to the first piece of what the model says.",
    ("gen_ai_operation_name", "gen_ai_request_model"),
    _FIRST_TOKEN,
)
TURNS = Family("antwort_response_turns", "histogram", "Inferences of a response.", (), _TURNS)
RUNS = Family("antwort_runs_live", "gauge", "Responses under way.")

# ---- inferences ----

INFERENCES = Family(
    "antwort_inferences_total",
    "counter",
    "Inferences at a backend, every try counted, by how they ended: `ok`, `cancelled`, or the code of an error.",
    ("backend", "outcome"),
)
INFERENCE_TIME = Family(
    "gen_ai_client_operation_duration_seconds",
    "histogram",
    "Time that an inference took, at the backend that is named as the provider.",
    ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"),
    _OPERATION,
)
FIRST_CHUNK = Family(
    "gen_ai_client_operation_time_to_first_chunk_seconds",
    "histogram",
    "Time from asking a backend to the first piece of its answer; streamed inferences only.",
    ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"),
    _OPERATION,
)
TOKENS = Family(
    "gen_ai_client_token_usage",
    "histogram",
    "Tokens of an inference, as the backend counts them.",
    ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"),
    _TOKENS,
)
TRUNCATED = Family(
    "antwort_inferences_truncated_total",
    "counter",
    "Inferences from which old turns or parts of long results were left out, so that they fit into the context.",
)
BACKEND_UP = Family("antwort_backend_up", "gauge", "1 if a backend answers, 0 if it does not.", ("backend",))
CIRCUIT_OPEN = Family(
    "antwort_backend_circuit_open",
    "gauge",
    "1 while the circuit breaker of one of the backend's models is open.",
    ("backend",),
)

# ---- tools ----

CALLS = Family(
    "antwort_tool_calls_total",
    "counter",
    "Tool calls that were answered here, by how: `ok`, `error`, `timeout`, `arguments` (they did not fit), `refused`, "
    "`handed` (to the client), `cancelled`.",
    ("tool", "server_label", "outcome"),
)
CALL_TIME = Family(
    "gen_ai_execute_tool_duration_seconds",
    "histogram",
    "Time that a tool call took, waiting for its place included.",
    ("gen_ai_tool_name", "server_label", "error_type"),
    _OPERATION,
)
MCP_UP = Family(
    "antwort_mcp_server_up",
    "gauge",
    "1 if an MCP server of the operator's could be used when it was last asked, 0 if it could not.",
    ("server_label",),
)
MCP_FAILURES = Family(
    "antwort_mcp_failures_total",
    "counter",
    "Lists and calls that failed because their MCP server could not be asked or did not answer as one; those of all "
    "servers that requests name by address are `other`.",
    ("server_label",),
)
MCP_SESSIONS = Family("antwort_mcp_sessions_open", "gauge", "Sessions with MCP servers that are open.")

# ---- runs of the log: background responses, and those that were gone on with ----

RUNS_QUEUED = Family(
    "antwort_runs_queued", "gauge", "Runs that wait for somebody to make them, over all processes that share the log."
)
RUNS_HELD = Family(
    "antwort_runs_held", "gauge", "Runs that somebody makes under a lease, over all processes that share the log."
)
OLDEST_RUN = Family(
    "antwort_runs_oldest_seconds", "gauge", "Time that the run that has waited for longest has waited so far."
)
RUN_WAIT = Family(
    "antwort_run_wait_seconds", "histogram", "Time that a run has waited until it was first claimed.", (), _WAITS
)
RUN_CLAIMS = Family(
    "antwort_run_claims_total",
    "counter",
    "Runs that this process has claimed: `new`, `handed_over` by a process that stopped, or `taken_over` from one that "
    "was lost.",
    ("kind",),
)
RUN_LEFT = Family(
    "antwort_runs_left_total",
    "counter",
    "Runs that this process did not make to their end: `handed_over` when it stopped, or `lost` to another.",
    ("how",),
)
RUN_LOG_TIME = Family(
    "antwort_run_log_operation_duration_seconds",
    "histogram",
    "Time that an operation of the log of runs took; `outcome` is `ok`, `fenced` (another has the run) or `error`.",
    ("operation", "outcome"),
    _STORE,
)

# ---- the store, and the program ----

STORE_TIME = Family(
    "antwort_store_operation_duration_seconds",
    "histogram",
    "Time that an operation of the store took; `outcome` is `ok` or `error`.",
    ("operation", "outcome"),
    _STORE,
)
BUILD = Family("antwort_build_info", "gauge", "Always 1; the version is in its label.", ("version",))

FAMILIES = tuple(each for each in vars().values() if isinstance(each, Family))
