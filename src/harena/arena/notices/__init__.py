"""News for owners who are not looking: webhooks and mail."""
