"""Short trainings of one script that differ in one thing: the arms, and their losses.

``arms`` lists them. A file of ``interventions/`` is the change of one of them inside the script's
process, which ``arm_process`` prepares; ``arm_runs`` starts and ends these processes. ``curves``
measures each arm's loss, and ``judge`` makes the verdict of them all.
"""
