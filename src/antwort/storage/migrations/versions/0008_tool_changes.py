"""Tools that change: which were ever listed as writing, and what a tool looked like when its call was asked about.

`server` is a digest of the server's address, or of its label where it has none. The name `''` stands for all tools of
the server. An empty `tool_digest` is not compared: nobody recorded one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "writing_tools",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("server", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.add_column("approvals", sa.Column("tool_digest", sa.Text, nullable=False, server_default=""))
    op.add_column("approvals", sa.Column("replaces", sa.Text))
