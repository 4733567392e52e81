"""HTTP of the arena, whatever is asked: the gate in front of all routes (`middleware`), refusals (`errors`, `strict`),
uploads and Prometheus counters (`metrics`). Connections, rates and sizes are in `harena.http`.
"""
