"""The loss of narrower dtypes."""
