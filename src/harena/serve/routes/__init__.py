"""REST paths by subject. `models` has bodies and answers, `context` what paths share."""
