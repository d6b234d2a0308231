"""Renders records as text: a room for each record, and a file for each format.

A format is a file with ``suffix`` and ``render``; its name is the value of ``-f``. What several
rooms show is here: the run's header, an error, the name of a call.
"""
