"""Finds the cause of an exactly zero gradient, by a second backward that is traced edge by edge."""
