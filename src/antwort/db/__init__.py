"""Where records are kept: a SQLite file, or a PostgreSQL that many processes share. Both take the same statements."""

from antwort.db.base import Connection, Cursor, Database, Operation, Value

__all__ = ["Connection", "Cursor", "Database", "Operation", "Value"]
