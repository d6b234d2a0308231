"""Formats of a training run: each has ``suffix`` and ``render(history, view)``.

All are functions of a ``RunHistory``, with the ``View`` that reports take. What is said of a run is
in ``_summary.py``, ``_found.py`` and ``_events.py``, its tables are in ``tables/``.
"""
