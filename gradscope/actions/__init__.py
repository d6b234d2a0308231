"""What an intervention does to a tensor: an action a file, found by its name; no torch.

A file has ``ACTION``: the function from a tensor to the new one, the value that it takes beside it,
and where it makes sense. The first line of its docstring is the help of its option.
"""

from gradscope.actions._action import PLACES, Action, Intervention, action, action_names, summary

__all__ = ["PLACES", "Action", "Intervention", "action", "action_names", "summary"]
