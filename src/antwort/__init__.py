"""antwort."""
