"""Where a NaN or an infinity of a training step came from, found in the step that made it.

``sentinel.py`` sees each call and each backward. ``calls.py`` keeps what is needed to run a
call again, with what ``habits.py`` has learned of its model, and ``rerun.py`` runs it. What lies
between the calls and the loss nobody can run again: ``loss.py`` reads it off the graph while it is
whole, and ``steep.py`` keeps what its backward may turn out to need. ``unlocated.py`` says what is
known where nothing was found.
"""
