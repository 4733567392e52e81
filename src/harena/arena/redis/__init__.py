"""What replicas share in Redis: `link` (connection), `bell` (changes at once), `boards` (sorted sets), `rates` (rate
limits). Redis is a cache and a bell: without it the database answers, and everything in it is rebuilt from there."""
