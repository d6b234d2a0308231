"""How text is set for people, whatever it says: numbers, safe text, tables that fit a width.

Nothing here knows a record; every room that shows something to people uses it.
"""
