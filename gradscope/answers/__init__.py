"""Answers of ``why`` → str, one file per format; no torch.

A format is a file with ``suffix`` and ``render(report, view)``.
"""

from gradscope.answers._severity import LEVELS, reaches, severity
from gradscope.answers._view import AnswerView

__all__ = ["LEVELS", "AnswerView", "reaches", "severity"]
