"""Changes of an arm in the script's process: a file each, with a function ``install``.

``install(patches, notes, factor)`` is called once the script has imported torch. Closing
``patches`` undoes the change; ``notes`` go to the process that compares the arms.
"""
