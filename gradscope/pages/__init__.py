"""What people look at rather than read: one HTML file that needs nothing else.

A reporter's ``html.py`` makes a ``Page`` of the tables and lines that its other formats show, and
``render`` writes it. ``assets`` holds the template, the style and the script: without script a page
is complete, with it tables sort, filter and fold.
"""

from gradscope.pages.html import fragment, render
from gradscope.pages.parts import Excerpt, Item, Page, Part, Picture, items, table_part

__all__ = [
    "Excerpt",
    "Item",
    "Page",
    "Part",
    "Picture",
    "fragment",
    "items",
    "render",
    "table_part",
]
