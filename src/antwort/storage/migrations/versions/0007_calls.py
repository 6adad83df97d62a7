"""Calls that a later response settles: each is run, or declined, at most once.

A row is written before the call begins. `result` is the JSON of what it came to; NULL while it is not known. A row goes
with the response that asked for the call, or with the conversation; one of the two keys is there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    response = sa.ForeignKey("responses.key", name="fk_calls_response", ondelete="CASCADE")
    conversation = sa.ForeignKey("conversations.key", name="fk_calls_conversation", ondelete="CASCADE")
    op.create_table(
        "calls",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("call_id", sa.Text, primary_key=True),
        sa.Column("response_key", sa.BigInteger, response),
        sa.Column("conversation_key", sa.BigInteger, conversation),
        sa.Column("settled_by", sa.Text, nullable=False),
        sa.Column("result", sa.LargeBinary),
    )
    op.create_index("ix_calls_response", "calls", ["response_key"])
    op.create_index("ix_calls_conversation", "calls", ["conversation_key"])
