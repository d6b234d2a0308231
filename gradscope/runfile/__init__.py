"""The run file: one SQLite database for each process of a training run; no torch.

``schema.py`` has the tables, ``writer.py`` the thread that writes beside the training,
``reader.py`` what ``show`` and the others read.
"""
