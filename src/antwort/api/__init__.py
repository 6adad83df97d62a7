"""The types of the protocol, and the parsing of requests. Of antwort, this package imports errors and ids only."""
