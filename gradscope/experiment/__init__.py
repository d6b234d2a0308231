"""Short trainings of one script that differ in one thing: the arms, and their losses.

``arms`` lists the arms. A file of ``interventions/`` changes the script inside its process.
``arm_process`` prepares that process; ``arm_runs`` starts and ends the processes. ``curves``
measures each arm's loss, and ``judge`` makes the verdict.
"""
