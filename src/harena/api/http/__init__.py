"""HTTP itself, whatever is asked: the gate in front of all routes (`middleware`), connections (`protocol`), rates and
sizes (`limits`), refusals (`errors`, `strict`), uploads and Prometheus counters (`metrics`).
"""
