"""Absolute Zero: a model proposes tasks, solves them, and learns from both; every check runs in a box."""
