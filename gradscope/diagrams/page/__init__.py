"""The page to explore a graph: what its script is given, and what can be read without script.

``assets`` holds the template, its style, and its script in parts.
"""
