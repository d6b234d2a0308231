"""Finds dead and saturated units."""
