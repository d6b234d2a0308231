"""Typesetting for people, whatever the content: numbers, safe text, tables that fit a width.

Nothing here knows a record; every room that shows something to people uses it.
"""
