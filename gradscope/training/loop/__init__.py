"""Observation of a training loop's order at every step: compares pointers, reads no number.

Each file observes one aspect and reports it as an event; the rules of the loop (GS8xx) read them.
To observe another aspect, add a file with a class here, and an object of it in ``loop.py``.
"""
