"""Approvals that a turn of a conversation asks for which is not kept itself: they go with the conversation.

One of the two keys is there: that of the response, or that of the conversation.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    conversation = sa.ForeignKey("conversations.key", name="fk_approvals_conversation", ondelete="CASCADE")
    with op.batch_alter_table("approvals") as table:
        table.alter_column("response_key", existing_type=sa.BigInteger, nullable=True)
        table.add_column(sa.Column("conversation_key", sa.BigInteger, conversation))
    op.create_index("ix_approvals_conversation", "approvals", ["conversation_key"])
