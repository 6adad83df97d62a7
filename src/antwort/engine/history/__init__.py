"""What came before a request: earlier responses, conversations, calls and approvals."""
