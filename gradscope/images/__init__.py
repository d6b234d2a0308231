"""Pictures: files read into tensors, and heat maps drawn over the photographs they speak of.

Nothing here writes a file. ``files`` alone is imported where no picture is read or drawn.
"""
