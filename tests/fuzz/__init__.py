"""A net for what nobody thought of: inputs made by the thousand, and the contract asked of each.

``python -m tests.fuzz`` runs for minutes; a few seconds of it are among the tests.
"""
