"""Which call of one run is which of another; and two that were saved, compared without torch.

``reports.py`` compares what ``inspect`` saved, ``runs.py`` what ``run`` recorded.
"""
