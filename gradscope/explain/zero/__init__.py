"""Cause of an exactly zero gradient: a second backward, traced edge by edge."""
