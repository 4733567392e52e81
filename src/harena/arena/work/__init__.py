"""Jobs as orders: what a worker needs to do one, and what it sends back."""
