"""What travels on the wire. This package imports nothing else of antwort but its errors and ids."""
