"""Run by alembic, with the connection that `antwort.storage.migrations` opened. It knows no ini file."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
