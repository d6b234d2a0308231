"""Reads picture files into tensors, and draws heat maps over photographs.

Nothing here writes a file. ``files`` needs no picture library.
"""
