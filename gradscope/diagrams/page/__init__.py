"""The page to explore a graph: its script's data, and the text without script.

``assets`` holds the template, its style, and its script in parts.
"""
