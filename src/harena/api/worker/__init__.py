"""`harena worker`: a process that only does jobs."""
