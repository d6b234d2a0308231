"""Multiply by VALUE."""

from gradscope.actions import Action, is_number

ACTION = Action(lambda tensor, factor: tensor * factor, "a number", is_number)
