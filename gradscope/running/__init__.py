"""Steps of the user's model. ``step`` is the only loop over them, and the only way to leave all as
it was before (``state``); an observer there records it.

``observe`` records activations and gradients, ``gradients`` the parameters' gradients, ``trace``
the autograd graph. ``rerun`` gives a step of a run again, and proves by it that looking changed
nothing.
"""
