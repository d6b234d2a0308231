"""Formats of a training run: each has ``suffix`` and ``render(history, view)``.

All are functions of a ``RunHistory``, with the ``View`` that reports take. What is reported of a
run is in ``sentences/``, its tables are in ``tables/``.
"""
