"""Charts over depth or over steps: their content and their drawing.

Other rooms make ``Panel``s and ``Map``s of their records. ``panels.py`` and ``maps.py`` draw them
for a page, ``figure.py`` as a picture file.
"""
