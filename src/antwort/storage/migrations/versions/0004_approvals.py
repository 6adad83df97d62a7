"""Calls that wait for the client's approval.

`status` is `pending`, `approved` or `denied`; that one has expired is read off `expires_at`. The larger `key` is the
newer. `decided_by` is the id of a response that may be kept nowhere.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    response = sa.ForeignKey("responses.key", name="fk_approvals_response", ondelete="CASCADE")
    op.create_table(
        "approvals",
        sa.Column("key", number, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("response_key", sa.BigInteger, response, nullable=False),
        sa.Column("response_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("decided_by", sa.Text),
        sa.Column("server_label", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
    )
    op.create_index("ix_approvals_id", "approvals", ["tenant", "owner", "id"], unique=True)
    op.create_index("ix_approvals_place", "approvals", ["tenant", "owner", "key"])
    op.create_index("ix_approvals_status", "approvals", ["tenant", "owner", "status", "key"])
    op.create_index("ix_approvals_response", "approvals", ["response_key"])
