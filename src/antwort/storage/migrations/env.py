"""Run by alembic, in the transaction that `antwort.storage.migrations` has begun. It knows no ini file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
