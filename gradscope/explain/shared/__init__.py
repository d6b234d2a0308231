"""Shared by all questions: frames, expressions, operations, module calls, the tracers."""
