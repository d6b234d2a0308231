"""Forecasts the values that narrower dtypes would lose."""
