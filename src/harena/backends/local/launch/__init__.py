"""Starts boxes on this machine: what a box sees, which user and cgroups it gets, and who cleans up after it."""
