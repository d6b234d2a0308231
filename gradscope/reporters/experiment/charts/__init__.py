"""The charts of an experiment."""
