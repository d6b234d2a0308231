"""Formats of the rule book: a list of all rules, or everything about one."""
