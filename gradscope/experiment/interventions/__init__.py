"""The changes of arms in the script's process: one file each, with a function ``install``.

``install(patches, notes, factor)`` is called once the script has imported torch. Closing
``patches`` undoes the change; ``notes`` go to the process that compares the arms.
"""
