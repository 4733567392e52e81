"""What every HTTP server of ours puts between a socket and a request: connections (`protocol`), and how much one
address may ask for (`limits`). The arena's API and the box server use it.
"""
