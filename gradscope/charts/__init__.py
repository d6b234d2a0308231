"""Charts over depth or over steps: their content and their drawing.

Rooms that know a record make ``Panel``s of it; ``svg.py`` draws them for a page, ``figure.py`` as a
picture file. Neither knows the meaning of the numbers.
"""
