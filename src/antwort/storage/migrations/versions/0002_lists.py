"""What it takes to list responses: their model in a column, and an index that holds all that a list goes by.

The order of a list is that of `created_at` and `key`. The status stands before them, so that the few of one status
are found among the many of another; the model stands behind, to be looked at without looking into the row, where it
comes after the request and the body.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

# A body that is damaged names no model, and must not keep the server from starting.
_READ_MODELS = """
    UPDATE responses
    SET model = coalesce(json_extract(CAST(body AS TEXT), '$.model'), '')
    WHERE json_valid(CAST(body AS TEXT))
"""


def upgrade() -> None:
    op.add_column("responses", sa.Column("model", sa.Text, nullable=False, server_default=""))
    if op.get_context().dialect.name == "sqlite":  # nowhere else is there anything from before
        op.execute(_READ_MODELS)
    op.create_index("ix_responses_listed", "responses", ["tenant", "owner", "status", "created_at", "key", "model"])
    op.drop_index("ix_responses_created", "responses")
