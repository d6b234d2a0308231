"""The run file: one SQLite database for each process of a training run; no torch.

``schema.py`` has the tables, ``writer.py`` the thread that writes beside the training, and
``reader.py`` the reader for ``show`` and other commands.
"""
