"""Makes tables of cells from a report; terminal, Markdown and CSV all render these."""
