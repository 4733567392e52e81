"""Boxes, pools and what they answer. Decides what to run and when; how it is isolated is the business of a backend."""
