"""Runs that outlive a process.

`runs` holds those that wait or are made, each with its fence; a run that has ended leaves it. `run_events` is what they
have said so far, piece by piece. When a run has ended, its pieces are put together in `run_logs`, a little later: until
then `log` is null. `workers` are the processes that make them. `responses.worker` is the one that makes a response in
the foreground, `cancelled_at` when somebody asked for its end. `seals` holds one text that all processes can open.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _of_response(table: str, *, is_key: bool = False) -> sa.Column[int]:
    """Goes with its response."""
    response = sa.ForeignKey("responses.key", name=f"fk_{table}_response", ondelete="CASCADE")
    return sa.Column("response_key", sa.BigInteger, response, primary_key=is_key, autoincrement=False, nullable=False)


def upgrade() -> None:
    op.drop_table("run_events")
    op.drop_table("tool_intents")
    op.add_column("responses", sa.Column("worker", sa.Text))
    op.add_column("responses", sa.Column("cancelled_at", sa.BigInteger))
    op.create_table(
        "workers",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("address", sa.Text),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_table(
        "seals",
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("token", sa.Text, nullable=False),
    )
    _create_runs()
    _create_logs()
    if op.get_context().dialect.name == "postgresql":  # where the oldest claims do not stand first
        op.create_index("ix_idempotency_keys_expiry", "idempotency_keys", ["expires_at"])


def _create_partial_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _create_runs() -> None:
    op.create_table(
        "runs",
        _of_response("runs", is_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text),
        sa.Column("identity", sa.LargeBinary, nullable=False),
        sa.Column("queued_at", sa.Double, nullable=False),
        sa.Column("begun_at", sa.Double),
        sa.Column("worker", sa.Text),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("is_cancelled", sa.Boolean(create_constraint=False), nullable=False),
    )
    op.create_index("ix_runs_id", "runs", ["tenant", "owner", "id"], unique=True)
    op.create_index("ix_runs_worker", "runs", ["worker"])
    in_turn = ["tenant", "owner", "conversation_id"]
    _create_partial_index("ix_runs_conversation", "runs", in_turn, "conversation_id IS NOT NULL")


def _create_logs() -> None:
    op.create_table(
        "run_events",
        _of_response("run_events"),
        sa.Column("at", sa.Integer, nullable=False),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("next", sa.Integer, nullable=False),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("response_key", "at", name="pk_run_events"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_logs",
        _of_response("run_logs", is_key=True),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
        sa.Column("log", sa.LargeBinary),
    )
    op.create_index("ix_run_logs_ended", "run_logs", ["ended_at"])
    _create_partial_index("ix_run_logs_loose", "run_logs", ["response_key"], "log IS NULL")
