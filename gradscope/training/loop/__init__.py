"""Observes the order of a training loop at every step, mostly without reading tensor values.

Each file observes one kind of event or mistake, and reports it; the rules of the loop (GS8xx) read
these reports. A new one is a class here, and an object of it in ``loop.py``.
"""
