"""Repositories of matches and of what follows from them."""
