"""Programs that overwrite what backward needs: residuals, masks, states, weights between steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.errors.cases import Program, broken

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IMAGES = torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8)


@broken("inplace-modification", "block", "block.conv1", "[2, 4, 8, 8]", "version", "x = x + r")
def residual_added_into_its_own_input(mended: bool) -> Program:
    """Implementation 1 of https://discuss.pytorch.org/t/in-place-operation-and-resnet/10724."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv0, self.bn0 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x):
            x = F.relu(self.bn0(self.conv0(x)))
            r = self.conv1(x)  # saved
            r = self.bn1(r)
            if mended:
                x = x + r
            else:
                x += r  # mutated
            return F.relu(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.block(x).mean((2, 3)))

    return Program(Net(), IMAGES, [0, 2], "cross_entropy")


@broken("inplace-modification", "", "exp", "result", "[3, 4]", "version 1", "version 0")
def exponential_shifted_in_place(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x).exp()  # saved
            return y.add(1) if mended else y.add_(1)  # mutated

    return Program(Net(), X)


@broken("inplace-modification", "relu", "sigmoid", "inplace=True", "relu")
def gate_behind_an_inplace_relu(mended: bool) -> Program:
    """A squeeze-and-excitation gate whose sigmoid's result an in-place module overwrites."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.relu = nn.Linear(4, 4), nn.ReLU(inplace=not mended)

        def forward(self, x):
            g = torch.sigmoid(self.gate(x))  # saved
            h = self.relu(g)  # mutated
            return x * h

    return Program(Net(), X)


@broken("inplace-modification", "0.drop", "softmax", "inplace")
def dropout_in_place_on_attention(mended: bool) -> Program:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5, inplace=not mended)

        def forward(self, x):
            scores = self.q(x) @ self.k(x).T
            a = scores.softmax(-1)  # saved
            a = self.drop(a)  # mutated
            return a @ self.v(x)

    return Program(nn.Sequential(Attention()), X)


@broken("inplace-modification", "", "softmax", "masked_fill(")
def attention_masked_after_the_softmax(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.v = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("mask", torch.ones(3, 3).triu(1) > 0)

        def forward(self, x):
            a = torch.softmax(self.q(x) @ x.T, -1)  # saved
            if mended:
                a = a.masked_fill(self.mask, 0.0)
            else:
                a.masked_fill_(self.mask, 0.0)  # mutated
            return a @ self.v(x)

    return Program(Net(), X)


@broken("inplace-modification", "", "tanh", "clone()")
def first_token_written_by_index(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.cls = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x):
            h = torch.tanh(self.fc(x))  # saved
            if mended:
                h = h.clone()
            h[0] = self.cls  # mutated
            return h

    return Program(Net(), X)


@broken("inplace-modification", "", "states", "torch.stack")
def states_kept_in_one_buffer(mended: bool) -> Program:
    """An RNN that writes its states into a tensor made beforehand."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(8, 4)

        def forward(self, x):
            if mended:
                states = [x.new_zeros(4)]
                for t in range(3):
                    states.append(torch.tanh(self.cell(torch.cat([x[t], states[t]]))))
                return torch.stack(states)
            states = x.new_zeros(4, 4)
            for t in range(3):
                h = self.cell.weight[:, 4:] @ states[t]  # saved
                states[t + 1] = torch.tanh(self.cell.weight[:, :4] @ x[t] + h)  # mutated
            return states

    return Program(Net(), X)


@broken("inplace-modification", "", "tanh", "h = h + ")
def state_accumulated_in_place(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.rec = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = x.new_zeros(1, 4)
            for t in range(3):
                h = torch.tanh(self.rec(h))  # saved
                if mended:
                    h = h + self.inp(x[t : t + 1])
                else:
                    h += self.inp(x[t : t + 1])  # mutated
            return h

    return Program(Net(), X)


@broken("inplace-modification", "", "view", "sigmoid")
def flattened_view_scaled_in_place(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x).sigmoid()  # saved
            flat = y.view(-1)
            return flat * 2 if mended else flat.mul_(2)  # mutated

    return Program(Net(), X)


@broken("inplace-modification", "", "D.2.weight", "SGD", "step()", "after the last backward")
def discriminator_steps_before_the_generators_backward(mended: bool) -> Program:
    """https://github.com/pytorch/pytorch/issues/39141: two losses first, then two updates."""

    class GAN(nn.Module):
        def __init__(self):
            super().__init__()
            self.G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
            self.D = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            self.opt_D = torch.optim.SGD(self.D.parameters(), 0.1)

        def forward(self, noise, real):
            fake = self.G(noise)
            score = self.D(fake)  # saved
            d_loss = F.softplus(score).mean() + F.softplus(-self.D(real)).mean()
            g_loss = F.softplus(-score).mean()
            self.opt_D.zero_grad()
            d_loss.backward(retain_graph=True)
            if mended:
                return F.softplus(-self.D(fake)).mean()
            self.opt_D.step()  # mutated
            return g_loss

    return Program(GAN(), (X, X.flip(0)))


@broken("inplace-modification", None, "critic.weight", "Adam", "step()")
def critic_updated_between_two_losses(mended: bool) -> Program:
    """Actor and critic share a loss function that updates the critic in between."""
    critic, actor = nn.Linear(4, 1), nn.Linear(4, 4)
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(critic.parameters(), 0.1)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = model["actor"], model["critic"]

        def forward(self, x):
            return self.critic(self.actor(x))  # saved

    def loss(value, target):
        if not mended:
            (value - target).pow(2).mean().backward(retain_graph=True)
            optimizer.step()  # mutated
        return -value.mean()

    return Program(Agent(), X, torch.ones(3, 1), loss)


@broken("inplace-modification", "", "fc2.weight", "clamp_", "fc2")
def weights_clamped_after_their_use(mended: bool) -> Program:
    """The weight clipping of a Wasserstein critic, at the end of forward."""

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 1)

        def clip(self):
            with torch.no_grad():
                self.fc2.weight.clamp_(-0.01, 0.01)  # mutated

        def forward(self, x):
            if mended:
                self.clip()
            y = self.fc2(self.fc1(x))  # saved
            if not mended:
                self.clip()
            return y

    return Program(Critic(), X)


@broken("inplace-modification", "", "table", "copy_", "[5, 4]")
def prototypes_normalised_on_each_call(mended: bool) -> Program:
    """Prototypes are brought to length one in place before each of two views (SwAV)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.table = nn.Linear(4, 4), nn.Parameter(torch.eye(5, 4) + 0.1)

        def normalise(self):
            with torch.no_grad():
                self.table.copy_(F.normalize(self.table, dim=1))  # mutated

        def scores(self, x):
            return self.fc(x) @ self.table.T  # saved

        def forward(self, x):
            self.normalise()
            first = self.scores(x)
            if not mended:
                self.normalise()
            return first + self.scores(x.flip(0))

    return Program(Net(), X)


@broken("inplace-modification", "", "centre", "mul", "clone()")
def centre_moved_after_its_use(mended: bool) -> Program:
    """A running centre (DINO) that the product saved and forward then moves."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("centre", torch.ones(4))

        def forward(self, x):
            x = self.fc(x)
            y = x * (self.centre.clone() if mended else self.centre)  # saved
            with torch.no_grad():
                self.centre.lerp_(x.mean(0), 0.1)  # mutated
            return y

    return Program(Net(), X)


@broken("inplace-modification", "", "scale", "leaf", "self.scale + 1")
def parameter_incremented_in_forward(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            if mended:
                return x * (self.scale + 1)
            self.scale += 1  # here
            return x * self.scale

    return Program(Net(), X)


@broken("inplace-modification", "emb", "weight", "no_grad")
def padding_row_zeroed_in_forward(mended: bool) -> Program:
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 4))

        def forward(self, ids):
            if mended:
                with torch.no_grad():
                    self.weight[0] = 0.0
            else:
                self.weight[0] = 0.0  # here
            return self.weight[ids]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = Table()

        def forward(self, ids):
            return self.emb(ids)

    return Program(Net(), torch.tensor([[0, 1], [2, 3]]))


@broken("inplace-modification", "", "a = a + ", "several views")
def half_of_a_chunk_added_to(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            a, b = self.fc(x).chunk(2, 1)
            if mended:
                a = a + b
            else:
                a += b  # here
            return a * b

    return Program(Net(), X)
