"""The parts of a transformer, found by structure: attention, experts, residual stream.

``parts.py`` follows the calls of one recorder; the others measure one part each.
"""
