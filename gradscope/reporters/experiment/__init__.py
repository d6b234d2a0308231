"""An experiment as text, a page, Markdown and JSON: a file for each format."""
