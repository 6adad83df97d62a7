"""What the server offers, described: the OpenAPI document and a page to read it. Imported when somebody asks for it."""
