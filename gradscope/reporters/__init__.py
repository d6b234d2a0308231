"""Records → text, the one home: a room for each record, a file for each format of it.

A format is a file with ``suffix`` and ``render``; its name is the value of ``-f``. What several
rooms show is here: the run's header, an error, the name of a call.
"""
