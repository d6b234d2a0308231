"""Alignment of the calls of two runs, and comparison of saved runs without torch.

``reports.py`` compares reports of ``inspect``, ``runs.py`` runs of ``run``.
"""
