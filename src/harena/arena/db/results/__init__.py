"""Repositories of submissions and of what they scored."""
