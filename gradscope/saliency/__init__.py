"""Attribution maps, one public file per method; a file is found by its name (``grad_cam.py``).

To add a method, add a file with ``paper``, ``signed``, ``reads`` (and ``random = True`` where it
draws numbers) and ``attribute(subject, *, …)``.
"""
