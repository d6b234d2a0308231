"""The keys of a config as text."""
