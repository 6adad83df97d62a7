"""Schemas of servers' tools, made plain for backends that take no others. All pure."""
