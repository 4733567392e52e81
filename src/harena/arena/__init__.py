"""Submissions, verified evaluations, rating ladders and the jobs behind them."""
