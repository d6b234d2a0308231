"""Limit each element to the range from -VALUE to VALUE."""

from gradscope.actions import Action, is_positive

ACTION = Action(lambda tensor, limit: tensor.clamp(-limit, limit), "a number above 0", is_positive)
