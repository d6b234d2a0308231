"""Inputs made by the thousand, and the contract asked of each: what nobody thought of.

``python -m tests.fuzz`` runs for minutes; a few seconds of it are among the tests. A new kind of
input is a strategy in one of the files here, named in ``strategies.py``.
"""
