"""Kubernetes operator: keeps the pods of warm pools, binds Sandboxes to them, and runs Tasks in them.

`decide` holds every decision as pure functions of what is wanted and what was observed. `controller` observes and acts,
`handlers` connects it to kopf, and `leader` lets one operator act at a time. Labels of pods are the only state, so an
operator may be killed at any moment.
"""
