"""What an arm changes in the script's process: a file each, whose ``install`` does it.

``install(patches, notes, factor)`` is called when the script has imported torch. Closing
``patches`` takes everything away again; ``notes`` goes to the process that compares the arms.
"""
