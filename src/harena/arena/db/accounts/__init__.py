"""Repositories of owners, their API keys and their quotas."""
