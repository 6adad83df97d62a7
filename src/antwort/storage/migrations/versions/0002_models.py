"""The model of a response in a column of its own, to list responses by it.

It cannot be read out of the row in passing: the column stands behind the request and the body, which may be large. So
there is an index, which ends in the order of the list.
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
    op.create_index("ix_responses_model", "responses", ["tenant", "owner", "model", "created_at"])


def downgrade() -> None:
    op.drop_index("ix_responses_model", "responses")
    op.drop_column("responses", "model")
