"""Add Gaussian noise with standard deviation VALUE, from the run's random numbers."""

from gradscope.actions import Action, is_positive

# PyTorch's own generator makes the noise, so a recomputation under checkpointing adds the same
# noise.
ACTION = Action(
    lambda tensor, deviation: tensor + deviation * tensor.detach().clone().normal_(),
    "a number above 0",
    is_positive,
)
