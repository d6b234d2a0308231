"""Observes the order of a training loop at every step, mostly without reading tensor values.

Each file observes one aspect and reports it as an event; the rules of the loop (GS8xx) read them.
A new aspect is a file with a class here, and an object of it in ``loop.py``.
"""
