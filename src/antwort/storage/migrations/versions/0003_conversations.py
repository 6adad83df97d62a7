"""Conversations, and the items in them.

The writer counts the positions. An id stands once in a conversation, and may stand in many: found by tenant, owner and
id it is the same index that keeps it so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    _create_conversations()
    _create_items()


def _key() -> sa.Column[int]:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("key", number, primary_key=True, autoincrement=True)


def _identity() -> list[sa.Column[str]]:
    return [sa.Column("tenant", sa.Text, nullable=False), sa.Column("owner", sa.Text, nullable=False)]


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        _key(),
        *_identity(),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("metadata", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_conversations_id", "conversations", ["tenant", "owner", "id"], unique=True)


def _create_items() -> None:
    conversation = sa.ForeignKey("conversations.key", name="fk_conversation_items_conversation", ondelete="CASCADE")
    op.create_table(
        "conversation_items",
        _key(),
        *_identity(),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("conversation_key", sa.BigInteger, conversation, nullable=False),
        sa.Column("direction", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
    )
    table, named = "conversation_items", ["tenant", "owner", "id", "conversation_key"]
    op.create_index("ix_conversation_items_id", table, named, unique=True)
    op.create_index("ix_conversation_items_place", table, ["conversation_key", "position"], unique=True)
