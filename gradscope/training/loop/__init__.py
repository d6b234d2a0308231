"""What a training loop does, in order, at every step: pointers are compared, no number is read.

Each file observes one thing and names what it saw as an event; the rules of the loop (GS8xx) read
them. To observe another thing: a file with a class here, and an object of it in ``loop.py``.
"""
