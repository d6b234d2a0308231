"""A run's numbers for other tools: a format a file.

A file has ``packages``, those that it needs beyond gradscope's own; ``folder``, None, or where it
fills a folder instead of a file the pattern of its files' names; and ``write(run, path)``, which
fills the new file or folder at ``path``.
The file's name is what ``gradscope export --to`` takes.
"""
