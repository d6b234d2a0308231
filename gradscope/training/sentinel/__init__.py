"""Where a NaN or an infinity of a training step came from, found in the step that made it.

``sentinel.py`` is told of each call and each backward; ``calls.py`` keeps what is needed to run a
call again, and ``again.py`` runs it. ``loss.py`` reads the operations between the calls and the loss
off the graph, since nobody can run those again.
"""
