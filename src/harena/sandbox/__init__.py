"""Boxes, pools and their results. Decides what to run and when; backends isolate it."""
