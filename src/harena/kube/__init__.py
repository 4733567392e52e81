"""Kubernetes API: access to a cluster, requests and watches, names of our objects, and claims of warm pods.

Uses the standard library; only kubeconfig files need PyYAML. The operator and the clients of a cluster share it.
"""
