"""Cut the graph upstream of the activation, as ``Tensor.detach`` does."""

from gradscope.actions import Action

ACTION = Action(lambda tensor, _: tensor.detach(), places=("activation",))
