"""Formats of what ``gradscope features`` found."""
