"""HTTP/1.1 client, parser for server-sent events, and policy against server-side request forgery (SSRF)."""
