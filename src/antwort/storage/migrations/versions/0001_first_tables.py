"""The first tables.

What a client can name is found by tenant, owner and id together. Inside, rows hang together by `key`, a number that
nobody outside sees and that grows with every row: it is short, and new entries of an index stand side by side, where
random ids would touch a page of their own each.

Responses that follow one another are a thread: a response goes on in its parent's thread when it is the first to
follow it, otherwise it starts a new one, whose first row has the fork point as its parent. A thread goes by the key
of its first response, and `depth` counts from the start of the whole chain.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_RUNNING = sa.text("status IN ('queued', 'in_progress')")
_HAS_PARENT = sa.text("parent_key IS NOT NULL")


def upgrade() -> None:
    _create_responses()
    _create_items()
    _create_turns()
    _create_tool_intents()
    _create_idempotency_keys()
    _create_run_events()


def _key() -> sa.Column[int]:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("key", number, primary_key=True, autoincrement=True)


def _identity() -> list[sa.Column[str]]:
    return [sa.Column("tenant", sa.Text, nullable=False), sa.Column("owner", sa.Text, nullable=False)]


def _of_response(table: str) -> sa.Column[int]:
    """Goes with its response."""
    response = sa.ForeignKey("responses.key", name=f"fk_{table}_response", ondelete="CASCADE")
    return sa.Column("response_key", sa.BigInteger, response, nullable=False)


def _create_responses() -> None:
    op.create_table(
        "responses",
        _key(),
        *_identity(),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("parent_key", sa.BigInteger, sa.ForeignKey("responses.key", name="fk_responses_parent")),
        sa.Column("thread_key", sa.BigInteger, nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("background", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("completed_at", sa.BigInteger),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("conversation_id", sa.Text),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_responses_id", "responses", ["tenant", "owner", "id"], unique=True)
    op.create_index("ix_responses_created", "responses", ["tenant", "owner", "created_at"])
    op.create_index("ix_responses_thread", "responses", ["thread_key", "depth"], unique=True)
    _create_partial_index("ix_responses_parent", ["parent_key"], _HAS_PARENT)
    _create_partial_index("ix_responses_running", ["status"], _RUNNING)


def _create_partial_index(name: str, columns: list[str], where: sa.TextClause) -> None:
    op.create_index(name, "responses", columns, sqlite_where=where, postgresql_where=where)


def _create_items() -> None:
    """The larger `key` is the newer item, where several go by one id. `raw` is the JSON as it came."""
    op.create_table(
        "items",
        _key(),
        *_identity(),
        sa.Column("id", sa.Text, nullable=False),
        _of_response("items"),
        sa.Column("direction", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_items_id", "items", ["tenant", "owner", "id"])
    op.create_index("ix_items_place", "items", ["response_key", "direction", "position"], unique=True)


def _create_turns() -> None:
    """The run's own marks in their order: the end of a turn (finish, usage), the end of a call.

    `items_end` is how many output items there were by then.
    """
    op.create_table(
        "turns",
        _of_response("turns"),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("mark", sa.LargeBinary, nullable=False),
        sa.Column("items_end", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("response_key", "number", name="pk_turns"),
        sqlite_with_rowid=False,
    )


def _create_tool_intents() -> None:
    op.create_table(
        "tool_intents",
        _of_response("tool_intents"),
        sa.Column("call_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("result", sa.LargeBinary),
        sa.PrimaryKeyConstraint("response_key", "call_id", name="pk_tool_intents"),
        sqlite_with_rowid=False,
    )


def _create_idempotency_keys() -> None:
    """A key is taken before its response exists and outlives it, so it does not hang on the response's row."""
    op.create_table(
        "idempotency_keys",
        *_identity(),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("request_hash", sa.LargeBinary, nullable=False),
        sa.Column("response_id", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("tenant", "owner", "key", name="pk_idempotency_keys"),
    )


def _create_run_events() -> None:
    op.create_table(
        "run_events",
        _of_response("run_events"),
        sa.Column("sequence_number", sa.BigInteger, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("response_key", "sequence_number", name="pk_run_events"),
        sqlite_with_rowid=False,
    )
