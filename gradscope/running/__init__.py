"""Steps of the user's model. ``step`` is the only loop over them, and the only way to leave all as
it was found (``state``, ``switches``); who looks on is an observer there.

``observe`` records what flows, ``gradients`` what the parameters get, ``trace`` the autograd graph.
``rerun`` gives a step of a run once more; ``verification`` proves that looking changed nothing.
"""
