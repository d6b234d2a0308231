"""Training loops with a mistake, each with its mended twin, and loops that only look like one.

A line with ``# broken`` is in the broken program alone, one with ``# mended`` in its twin; the
finding's location is the line with ``# here``.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_BEGIN = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(2, (64,))


def batch(step):
    first = step % 8 * 8
    return x[first : first + 8], y[first : first + 8]


def new():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


net = new()
"""


@dataclass(frozen=True)
class LoopProgram:
    """A loop with a mistake; what must be found: a rule's code, words of the message, a place."""

    code: str
    words: tuple[str, ...]
    body: str
    name: str | None = None

    def source(self, *, broken: bool) -> str:
        """The broken program, or its twin."""
        drop = "# mended" if broken else "# broken"
        lines = (_BEGIN + textwrap.dedent(self.body)).splitlines(keepends=True)
        return "".join("\n" if drop in line else line for line in lines)

    def line(self) -> int | None:
        """The number of the marked line; None without one."""
        lines = self.source(broken=True).splitlines()
        found = [n for n, line in enumerate(lines, 1) if "# here" in line]
        return found[0] if found else None


BROKEN = {
    "a running sum of losses goes backward after each term": LoopProgram(
        "GS815", ("on a running sum of losses", "in all 12 steps"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores, total = net(inputs), 0.0
            for term in (F.cross_entropy(scores, labels), scores.square().mean(), scores.std()):
                total = total + 0.1 * term
                total.backward(retain_graph=True)  # broken # here
            total.backward()  # mended
            optimizer.step()
        """),
    "one loss goes backward before and after another": LoopProgram(
        "GS815", ("`backward` runs twice on the same loss",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs)
            fit, size = F.cross_entropy(scores, labels), scores.square().mean()
            fit.backward(retain_graph=True)
            size.backward(retain_graph=True)
            fit.backward()  # broken # here
            optimizer.step()
        """),
    "an average keeps the graphs of a number that is only reported": LoopProgram(
        "GS813", ("are kept alive by `average.total`",), """
        class Average:
            def __init__(self):
                self.total, self.count = 0.0, 0

            def add(self, value):
                self.total = self.total + value
                self.count += 1

        def train():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            average = Average()
            for step in range(40):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                after = net[2](net[:2](inputs)).square().mean()
                average.add(after)  # broken # here
                average.add(after.item())  # mended

        train()
        """, "average.total"),
    "a list keeps outputs that no loss needs": LoopProgram(
        "GS813", ("are kept alive by `outputs`",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        outputs = []
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            outputs.append(net(x[:4]))  # broken # here
            outputs.append(net(x[:4]).detach())  # mended
        """, "outputs"),
    "a state is carried without detach, by the script's own optimizer": LoopProgram(
        "GS813", ("`state` carries the graphs of all earlier steps",), """
        mix, read = torch.randn(4, 4) * 0.3, torch.randn(4, 2) * 0.3
        weights = [mix.requires_grad_(), read.requires_grad_()]

        def follow(inputs, labels, state):
            for one in inputs.split(2):
                state = torch.tanh(one.repeat(4, 1) + state @ mix)
            return F.cross_entropy(state @ read, labels), state

        def train(state):
            for step in range(70):
                inputs, labels = batch(step)
                state = state.detach()  # mended
                loss, state = follow(inputs, labels, state)  # here
                loss.backward(retain_graph=True)
                for weight in weights:
                    weight.data.sub_(weight.grad, alpha=0.1)
                    weight.grad = None

        train(torch.zeros(8, 4))
        """, "state"),
    "a state is carried without detach, in an optimizer's loop": LoopProgram(
        "GS813", ("`memory.state` carries the graphs",), """
        class Memory:
            def __init__(self):
                self.state = torch.zeros(8, 2)

        memory, one = Memory(), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
        for step in range(70):
            inputs, labels = batch(step)
            memory.state = memory.state.detach()  # mended
            memory.state = 0.5 * memory.state + one(inputs)  # here
            optimizer.zero_grad()
            F.cross_entropy(memory.state, labels).backward(retain_graph=True)
            optimizer.step()
        """, "memory.state"),
    "a scheduler of a function, in the place of which another steps twice": LoopProgram(
        "GS812", ("`second_scheduler` (StepLR) makes no step",), """
        def scheduler_of(optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, 1000)

        first = torch.optim.SGD(net[0].parameters(), lr=0.01)
        second = torch.optim.SGD(net[2].parameters(), lr=0.01)
        first_scheduler = scheduler_of(first)
        second_scheduler = scheduler_of(second)  # here
        schedulers = first_scheduler, first_scheduler  # broken
        schedulers = first_scheduler, second_scheduler  # mended
        for step in range(12):
            inputs, labels = batch(step)
            first.zero_grad()
            second.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            for optimizer, scheduler in zip((first, second), schedulers):
                optimizer.step()
                scheduler.step()
        """, "second_scheduler"),
    "a copy's gradients are clipped": LoopProgram(
        "GS808", ("the clipped parameters are held by no optimizer",), """
        import copy
        mean = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(mean.parameters(), 1.0)  # broken # here
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # mended
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(mean.parameters(), net.parameters()):
                    old.lerp_(new, 0.1)
            mean(inputs)
        """),
    "a mode that no phase has": LoopProgram(
        "GS809", ("trains in eval mode in all 12 steps",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def run(phase, count):
            net.train(phase == "fit")  # broken # here
            net.train(phase == "train")  # mended
            for step in range(count):
                inputs, labels = batch(step)
                with torch.set_grad_enabled(phase == "train"):
                    loss = F.cross_entropy(net(inputs), labels)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        for epoch in range(3):
            run("train", 4)
            run("test", 2)
        """, "net"),
    "an encoder in eval mode since its size was asked for": LoopProgram(
        "GS809", ("`encoder` trains in eval mode in all 12 steps, though `net` is in train",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
                self.encoder.eval()  # here
                with torch.no_grad():
                    width = self.encoder(torch.zeros(1, 4)).shape[1]
                self.encoder.train()  # mended
                self.head = nn.Linear(width, 2)

            def forward(self, given):
                return self.head(self.encoder(given))

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "encoder"),
    "a step that always trains, also in the evaluation": LoopProgram(
        "GS810", ("batch normalization updates its statistics",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def take(inputs, labels, learn):
            net.train()  # broken # here
            net.train(learn)  # mended
            loss = F.cross_entropy(net(inputs), labels)
            if learn:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        for epoch in range(4):
            for step in range(4):
                take(*batch(step), True)
            net.eval()
            with torch.no_grad():
                take(*batch(5), False)
        """, "net"),
    "milestones in epochs, passed in as many batches": LoopProgram(
        "GS811", ("from 0.1000 to 0.01000 within 4 steps of 64", "milestones=[2, 4]"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.316228)
        for epoch in range(8):
            for inputs, labels in DataLoader(TensorDataset(x, y), 8, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                schedule.step()  # broken # here
            schedule.step()  # mended
        """, "schedule"),
    "a body that would be unfrozen later than the run ends": LoopProgram(
        "GS823", ("holds 2 parameters that stayed frozen", "unfreezes parameters if `step >= 100`"),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            train_body = step >= 100  # broken # here
            train_body = step >= 10  # mended
            for parameter in net[0].parameters():
                parameter.requires_grad = train_body
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "a frozen group beside parameters in no optimizer": LoopProgram(
        "GS823", ("group 0 of `optimizer` holds only frozen parameters, `2.weight`", "`0.weight`"),
        """
        for parameter in net[2].parameters():
            parameter.requires_grad = False  # here
        optimizer = torch.optim.SGD([{"params": net[2].parameters()}], lr=0.1)
        optimizer.add_param_group({"params": [net[0].bias]})
        optimizer.add_param_group({"params": [net[0].weight]})  # mended
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "gradients of the discriminator's loss in the generator's step": LoopProgram(
        "GS828", ("in 11 of 12 steps", "`generator_optimizer`"), """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
        critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
        for step in range(12):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 2))
            critic_optimizer.zero_grad()
            kept = fake.detach()  # mended
            kept = fake  # broken
            loss = critic(kept).mean() - critic(real).mean()
            loss.backward(retain_graph=True)  # here
            critic_optimizer.step()
            loss = -critic(generator(torch.randn(8, 2))).mean()
            loss.backward()
            generator_optimizer.step()
            generator_optimizer.zero_grad()
        """, "generator_optimizer"),
    "a term of the loss goes backward before the loss": LoopProgram(
        "GS815", ("alone, at train.py:", "as a term of the loss at train.py:"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs)
            fit = F.cross_entropy(scores, labels)
            fit.backward(retain_graph=True)  # broken
            total = fit + 0.1 * scores.square().mean()
            total.backward()  # here
            optimizer.step()
        """),
    "graphs of the validation are kept": LoopProgram(
        "GS813", ("calls in eval mode", "by `history`"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        history = []
        for step in range(16):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net.train()(inputs), labels).backward()
            optimizer.step()
            validation = F.cross_entropy(net.eval()(x), y)
            history.append(validation)  # broken # here
            history.append(validation.item())  # mended
        """, "history"),
    "no zero_grad": LoopProgram(
        "GS801", ("in all 11 steps after the first", "nothing clears them"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()  # mended
            loss.backward()  # here
            optimizer.step()
        """, "optimizer"),
    "a zero_grad per epoch, after which the first layer's units are dead": LoopProgram(
        "GS801", ("`zero_grad` is called less often than `step`",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(24):
            inputs, labels = batch(step)
            if step % 8 == 0:  # broken
                optimizer.zero_grad()  # broken
            optimizer.zero_grad()  # mended
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()  # here
            optimizer.step()
            if step == 5:  # broken
                nn.init.constant_(net[0].bias, -100.0)  # broken
        """, "optimizer"),
    "a plateau of the accuracy with mode='min'": LoopProgram(
        "GS875", ("mode='min' and gets `val_acc`", "from 0.1 to 0.001, in 3 steps"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(  # broken
            optimizer, patience=0  # broken
        )  # broken
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(  # mended
            optimizer, "max", patience=0  # mended
        )  # mended
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            if step in (5, 7, 9):
                val_acc = 0.5 + step / 100
                scheduler.step(val_acc)  # here
        """, "scheduler"),
    "an update of the loop's variable": LoopProgram(
        "GS874", ("sets the variable `weight`, not the parameter", "in 12 backwards"), """
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            with torch.no_grad():
                for weight in net.parameters():
                    if weight.grad is not None:
                        weight = weight - 0.1 * weight.grad  # broken # here
                        weight -= 0.1 * weight.grad  # mended
        """),
    "the other optimizer's zero_grad": LoopProgram(
        "GS801", ("`zero_grad` is called on `second`, not on `first`",), """
        other = new()
        first = torch.optim.SGD(net.parameters(), lr=0.01)
        second = torch.optim.SGD(other.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            second.zero_grad()  # here
            first.zero_grad()  # mended
            loss = F.cross_entropy(net(inputs), labels)
            loss = loss + F.cross_entropy(other(inputs), labels)
            loss.backward()
            first.step()
            second.step()
        """, "first"),
    "the generator's zero_grad before the critic's backward": LoopProgram(
        "GS801", ("`zero_grad` is called on `first`, not on `second`", "in all 11 steps"), """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(generator.parameters(), lr=0.01)
        second = torch.optim.SGD(critic.parameters(), lr=0.01)
        for step in range(12):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 2))
            first.zero_grad()  # broken # here
            second.zero_grad()  # mended
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            second.step()
            first.zero_grad()
            (-critic(generator(torch.randn(8, 2))).mean()).backward()
            first.step()
        """, "second"),
    "weights are drawn again in every epoch": LoopProgram(
        "GS831", ("the 2 weights of `optimizer` were drawn at random again 5 times",), """
        def reset(module):
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight.data)
        optimizer = torch.optim.Adam(net.parameters())
        net.apply(reset)  # mended
        for step in range(24):
            if step % 4 == 0:
                net.apply(reset)  # broken # here
                pass  # mended
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "zero_grad between backward and step": LoopProgram(
        "GS802", ("`optimizer.zero_grad()` clears", "in all 12 steps"), """
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()  # mended
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.zero_grad()  # broken # here
            optimizer.step()
        """, "optimizer"),
    "zeros between backward and step": LoopProgram(
        "GS802", ("`net.zero_grad()` clears",), """
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            inputs, labels = batch(step)
            F.cross_entropy(net(inputs), labels).backward()
            net.zero_grad(set_to_none=False)  # broken # here
            optimizer.step()
            net.zero_grad()  # mended
        """, "optimizer"),
    "no step": LoopProgram(
        "GS803", ("makes no step", "11 backwards"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(11):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()  # here
            optimizer.step  # broken
            optimizer.step()  # mended
        """, "optimizer"),
    "a scheduler steps in the optimizer's place": LoopProgram(
        "GS803", ("Only its scheduler `scheduler` steps",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()  # here
            optimizer.step()  # mended
            scheduler.step()
        """, "optimizer"),
    "the head is replaced after the optimizer was made": LoopProgram(
        "GS804", ("No optimizer holds `2.weight`, `2.bias`", "`2` was set after that"), """
        net[2] = nn.Linear(8, 3)  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # here
        net[2] = nn.Linear(8, 3)  # broken
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "the model is made again after the optimizer was made": LoopProgram(
        "GS804", ("`net` was set after that", "No optimizer holds `0.weight`"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # here
        net = new()  # broken
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "the optimizer of another copy": LoopProgram(
        "GS804", ("holds only parameters of",), """
        import copy
        old = net
        net = copy.deepcopy(net)  # broken
        optimizer = torch.optim.SGD(old.parameters(), lr=0.1)  # here
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "a parameter in two optimizers": LoopProgram(
        "GS805", ("both hold 2 parameters",), """
        first = torch.optim.SGD(net.parameters(), lr=0.1)  # broken
        first = torch.optim.SGD(net[0].parameters(), lr=0.1)  # mended
        second = torch.optim.SGD(net[2].parameters(), lr=0.1)  # here
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            first.step()
            second.step()
        """, "second"),
    "an optimizer that a function makes for a copy": LoopProgram(
        "GS804", ("and set at train.py:", "holds only parameters of `copied`"), """
        import copy

        def optimizer_of(model):
            return torch.optim.SGD(model.parameters(), lr=0.1)

        copied = copy.deepcopy(net)
        optimizer = optimizer_of(copied)  # broken # here
        optimizer = optimizer_of(net)  # mended
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "a learning rate of zero": LoopProgram(
        "GS806", ("is 0 in all 12 steps",), """
        rate = 1 // 10  # broken
        rate = 1 / 10  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)  # here
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "a cycle that is stepped once an epoch": LoopProgram(
        "GS830", ("reached 0.0", "made 4 steps of 32", "`optimizer` 32"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=32)
        for epoch in range(4):
            for step in range(8):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                if cycle.last_epoch < 31: cycle.step()  # mended
            cycle.step()  # broken # here
        """, "cycle"),
    "the network takes the weights of its target": LoopProgram(
        "GS831", ("reset `net` to the same weights 4 times",), """
        import copy
        target = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(20):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():
                target(inputs)
            if step % 5 == 4:
                net.load_state_dict(target.state_dict())  # broken # here
                target.load_state_dict(net.state_dict())  # mended
        """, "net"),
    "a schedule's factor of zero": LoopProgram(
        "GS806", ("`scheduler` (LambdaLR) sets it",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        never = lambda n: n // 100
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, never)  # broken # here
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 100)  # mended
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            scheduler.step()
        """, "optimizer"),
    "a frozen layer with an old gradient": LoopProgram(
        "GS807", ("moves 2 frozen parameters",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(16):
            inputs, labels = batch(step)
            optimizer.zero_grad(set_to_none=False)  # broken
            optimizer.zero_grad()  # mended
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            if step == 3:
                net[0].requires_grad_(False)  # here
        """, "optimizer"),
    "clipped after the step": LoopProgram(
        "GS808", ("after the step that used them",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # mended
            optimizer.step()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # broken # here
        """),
    "clipped right after clearing": LoopProgram(
        "GS808", ("there are no gradients when they are clipped", "in 11 of 12 steps"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # broken # here
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # mended
            optimizer.step()
        """),
    "a generator that is used up is clipped": LoopProgram(
        "GS808", ("there is no parameter to clip",), """
        weights = net.parameters()  # broken
        weights = list(net.parameters())  # mended
        optimizer = torch.optim.SGD(weights, lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(weights, 1.0)  # here
            optimizer.step()
        """),
    "eval mode since the first evaluation": LoopProgram(
        "GS809", ("trains in eval mode since step",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.train()
        for epoch in range(4):
            net.train()  # mended
            for step in range(4):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
            net.eval()  # here
            with torch.no_grad():
                net(x)
        """, "net"),
    "evaluated in train mode": LoopProgram(
        "GS810", ("batch normalization updates its statistics",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(4):
            net.train()
            for step in range(4):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
            net.eval()  # mended
            with torch.no_grad():
                net(x)  # here
        """, "net"),
    "a schedule of epochs, stepped for each batch": LoopProgram(
        "GS811", ("falls below 1 %", "makes a step after every batch"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.1)
        for epoch in range(6):
            for step in range(8):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                scheduler.step()  # broken # here
            scheduler.step()  # mended
        """, "scheduler"),
    "such a schedule in a function that has returned": LoopProgram(
        "GS811", ("falls below 1 %", "makes a step after every batch"), """
        def main():
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
            for epoch in range(6):
                for step in range(8):
                    inputs, labels = batch(step)
                    optimizer.zero_grad()
                    F.cross_entropy(net(inputs), labels).backward()
                    optimizer.step()
                    scheduler.step()  # broken # here
                scheduler.step()  # mended

        main()
        """, "scheduler"),
    "a scheduler that never steps": LoopProgram(
        "GS812", ("makes no step while `optimizer` makes 12 steps",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)  # here
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            scheduler.step()  # mended
        """, "scheduler"),
    "the losses of all steps are added up": LoopProgram(
        "GS813", ("10 losses", "by `total`"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        total = 0
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss  # broken # here
            total += loss.item()  # mended
        """, "total"),
    "the loader begins anew at each step": LoopProgram(
        "GS814", ("restarts each time",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        batches = iter(loader)  # mended
        for step in range(8):
            inputs, labels = next(iter(loader))  # broken # here
            inputs, labels = next(batches)  # mended
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "one loss goes backward twice": LoopProgram(
        "GS815", ("`backward` runs twice on the same loss",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward(retain_graph=True)  # broken
            loss.backward()  # here
            optimizer.step()
        """),
    "two steps for one backward": LoopProgram(
        "GS815", ("steps without a `backward` since its last step",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            optimizer.step()  # broken # here
        """, "optimizer"),
    "a loss made of numbers": LoopProgram(
        "GS816", ("starts at a tensor without a graph", "`.item()`"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss = torch.tensor(loss.item(), requires_grad=True)  # broken # here
            loss.backward()
            optimizer.step()
        """),
    "a gradient that another optimizer's step removes": LoopProgram(
        "GS401", ("has no gradient when `second` steps", "though backward gives one"), """
        first = torch.optim.SGD([*net[0].parameters(), net[2].weight], lr=0.1)
        second = torch.optim.SGD([net[2].bias], lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            first.zero_grad()
            second.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            first.step()
            net[2].bias.grad = None  # broken
            second.step()
        """, "2.bias"),
    "a branch that detaches": LoopProgram(
        "GS401", ("`detach`", "`bias` gets no gradient in all 12 steps"), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.bias = new(), nn.Parameter(torch.zeros(2))

            def forward(self, inputs):
                return self.net(inputs) + self.bias.detach()  # broken # here
                return self.net(inputs) + self.bias  # mended

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "bias"),
    "advantages of zero": LoopProgram(
        "GS103", ("multiplies by a tensor", "exactly zero in all 12 steps"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            reward = labels.float()
            left = reward - reward  # broken
            left = reward - 0.5  # mended
            score = F.cross_entropy(net(inputs), labels, reduction="none")
            optimizer.zero_grad()
            (score * left).mean().backward()  # here
            optimizer.step()
        """),
    "a layer that is never called": LoopProgram(
        "GS402", ("never called in all 12 steps",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.extra = new(), nn.Linear(2, 2)

            def forward(self, inputs):
                return self.net(inputs)  # broken
                return self.extra(self.net(inputs))  # mended

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "extra"),
    "a layer that is never called, in a function": LoopProgram(
        "GS402", ("never called in all 12 steps",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.extra = new(), nn.Linear(2, 2)

            def forward(self, inputs):
                return self.net(inputs)  # broken
                return self.extra(self.net(inputs))  # mended

        def train():
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(12):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()

        train()
        """, "extra"),
    "no zero_grad, in a function that makes three steps": LoopProgram(
        "GS801", ("in all 2 steps after the first",), """
        def train():
            model = new()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(3):
                inputs, labels = batch(step)
                optimizer.zero_grad()  # mended
                F.cross_entropy(model(inputs), labels).backward()  # here
                optimizer.step()

        train()
        """, "optimizer"),
    "a layer that no optimizer holds, in a function": LoopProgram(
        "GS404", ("no optimizer holds `model.0.weight`, `model.0.bias`",), """
        def train():
            model = new()
            optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)  # broken # here
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # mended
            for step in range(12):
                inputs, labels = batch(step)
                model.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()

        train()
        """, "0"),
    "a branch that ends in zeros and that no optimizer holds": LoopProgram(
        "GS404", ("no optimizer holds `last.weight`, `last.bias`",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.skip, self.first, self.last = nn.Linear(4, 2), nn.Linear(4, 8), nn.Linear(8, 2)
                nn.init.zeros_(self.last.weight)

            def forward(self, inputs):
                return self.skip(inputs) + self.last(self.first(inputs).relu())

        net = Net()
        held = [*net.skip.parameters(), *net.first.parameters()]
        held += [*net.last.parameters()]  # mended
        optimizer = torch.optim.SGD(held, lr=0.1)  # here
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "last"),
    "a parameter that an operation made a tensor": LoopProgram(
        "GS404", ("`net.shift` [1, 4] is a plain tensor", "what it was made of gets gradients"), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.shift = nn.Parameter(torch.zeros(4)).unsqueeze(0)  # broken # here
                self.shift = nn.Parameter(torch.zeros(1, 4))  # mended
                self.body = new()
                self.latest = None

            def forward(self, inputs):
                self.latest = self.body(inputs + self.shift)
                return self.latest

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "shift"),
    "the optimizer of the teacher": LoopProgram(
        "GS804", ("of `teacher`, which gets no gradient", "No optimizer holds `net.0.weight`"), """
        teacher = new()
        optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)  # broken # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # mended
        for step in range(12):
            inputs, _ = batch(step)
            with torch.no_grad():
                wanted = teacher(inputs)
            optimizer.zero_grad()
            F.mse_loss(net(inputs), wanted).backward()
            optimizer.step()
        """, "optimizer"),
    "layers in a plain list": LoopProgram(
        "GS404", ("of 2 modules `Linear`", "`net.body` is a plain list"), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = [nn.Linear(4, 4), nn.Linear(4, 4)]  # broken # here
                self.body = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])  # mended
                self.head = nn.Linear(4, 2)

            def forward(self, inputs):
                for layer in self.body:
                    inputs = layer(inputs).relu()
                return self.head(inputs)

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "Linear"),
    "two optimizers of one model, and none of the other": LoopProgram(
        "GS404", ("`second` holds the same 2 parameters as `first`",), """
        maker, judge = nn.Linear(4, 4), nn.Linear(4, 2)
        first = torch.optim.SGD(judge.parameters(), lr=0.1)
        second = torch.optim.SGD(judge.parameters(), lr=0.1)  # broken # here
        second = torch.optim.SGD(maker.parameters(), lr=0.1)  # mended
        for step in range(12):
            inputs, labels = batch(step)
            made = maker(inputs)
            first.zero_grad()
            F.cross_entropy(judge(made.detach()), labels).backward()
            first.step()
            second.zero_grad()
            F.cross_entropy(judge(made), labels).backward()
            second.step()
        """, "maker"),
    "a head that no optimizer holds, in the second phase": LoopProgram(
        "GS404", ("no optimizer holds", "`tune.1.weight`", "in all 7 steps"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        tune = nn.Sequential(net[0], nn.Linear(8, 2))  # here
        second = torch.optim.SGD(net[0].parameters(), lr=0.1)  # broken
        second = torch.optim.SGD(tune.parameters(), lr=0.1)  # mended
        for step in range(7):
            inputs, labels = batch(step)
            tune.zero_grad()
            F.cross_entropy(tune(inputs), labels).backward()
            second.step()
        """),
    "a layer that no optimizer holds": LoopProgram(
        "GS404", ("no optimizer holds `0.weight`, `0.bias`", "in all 12 steps"), """
        optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)  # broken # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # mended
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "0"),
    "values that are detached, beside a bootstrap without gradients": LoopProgram(
        "GS401", ("`detach`", "get no gradient in all 12 steps"), """
        class Agent(nn.Module):
            def __init__(self):
                super().__init__()
                self.actor, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)

            def forward(self, states):
                return self.actor(states).log_softmax(1), self.critic(states)[:, 0]

        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), lr=0.01)
        for step in range(12):
            states, chosen, values = torch.randn(6, 8, 4), [], []
            for t in range(5):
                scores, value = agent(states[t])
                chosen.append(scores[:, t % 3])
                values.append(value.detach())  # broken # here
                values.append(value)  # mended
            with torch.no_grad():
                last = agent(states[5])[1]
            with torch.no_grad():
                goals = [*values[1:], last]
                targets = torch.stack([states[t, :, 0] + 0.9 * goals[t] for t in range(5)])
            values = torch.stack(values)
            gains = targets - values.detach()
            loss = (values - targets).square().mean() - (torch.stack(chosen) * gains).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """, "critic"),
    "features without gradients, beside a target that is detached": LoopProgram(
        "GS401", ("while gradients were disabled", "get no gradient in all 12 steps"), """
        encoder, head = nn.Linear(4, 4), nn.Linear(4, 4)
        both = nn.ModuleDict({"encoder": encoder, "head": head})
        optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
        for step in range(12):
            inputs = torch.randn(8, 4)
            with torch.no_grad():  # broken # here
                features = encoder(inputs)  # broken
            features = encoder(inputs)  # mended
            target = encoder(inputs + 0.1 * torch.randn(8, 4)).detach()
            optimizer.zero_grad()
            F.mse_loss(head(features), target).backward()
            optimizer.step()
        """),
    "a term of the first optimizer's loss that becomes a number": LoopProgram(
        "GS401", ("`float(…)`", "cut the graph", "get no gradient in all 24 steps"), """
        import logging

        class Judge(nn.Module):
            def __init__(self):
                super().__init__()
                self.trunk = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2))
                self.real, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)

            def forward(self, points):
                states = self.trunk(points)
                return self.real(states), self.kind(states)

        def logged(loss):
            logging.info("%.3f", loss.item())
            return loss  # mended
            return float(loss)  # here

        bce, judge, forger = F.binary_cross_entropy_with_logits, Judge(), nn.Linear(4, 2)
        first = torch.optim.Adam(judge.parameters(), lr=0.01)
        second = torch.optim.Adam(forger.parameters(), lr=0.01)
        for step in range(24):
            kinds = torch.randint(3, (16,))
            points = F.one_hot(kinds, 3)[:, :2] + 0.1 * torch.randn(16, 2)
            true, guess = judge(points)
            forged = forger(torch.randn(16, 4))
            loss = bce(true, torch.ones(16, 1)) + bce(judge(forged.detach())[0], torch.zeros(16, 1))
            loss = loss + logged(F.cross_entropy(guess, kinds))
            first.zero_grad()
            loss.backward()
            first.step()
            true, guess = judge(forged)
            loss = bce(true, torch.ones(16, 1)) + F.cross_entropy(guess, kinds)
            second.zero_grad()
            loss.backward()
            second.step()
        """),
    "a head that only the other optimizer's loss uses": LoopProgram(
        "GS401", ("its last use is", "the loss does not use it", "in all 24 steps"), """
        class Judge(nn.Module):
            def __init__(self):
                super().__init__()
                self.trunk = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2))
                self.real, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)

            def forward(self, points):
                states = self.trunk(points)
                return self.real(states), self.kind(states)  # here

        bce, judge, forger = F.binary_cross_entropy_with_logits, Judge(), nn.Linear(4, 2)
        first = torch.optim.Adam(judge.parameters(), lr=0.01)
        second = torch.optim.Adam(forger.parameters(), lr=0.01)
        for step in range(24):
            kinds = torch.randint(3, (16,))
            points = F.one_hot(kinds, 3)[:, :2] + 0.1 * torch.randn(16, 2)
            true, guess = judge(points)
            forged = forger(torch.randn(16, 4))
            loss = bce(true, torch.ones(16, 1)) + bce(judge(forged.detach())[0], torch.zeros(16, 1))
            loss = loss + F.cross_entropy(guess, kinds)  # mended
            first.zero_grad()
            loss.backward()
            first.step()
            true, guess = judge(forged)
            loss = bce(true, torch.ones(16, 1)) + F.cross_entropy(guess, kinds)
            second.zero_grad()
            loss.backward()
            second.step()
        """),
}  # fmt: skip

#: What does on purpose what a rule looks for, or something like it.
HEALTHY = {
    "layers are frozen by their number": """
        for number, parameter in enumerate(net.parameters()):
            parameter.requires_grad = number >= 2
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a condition that unfreezes another part": """
        net[0].bias.requires_grad = False
        net[2].requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            if step == 6:
                net[2].requires_grad_(True)
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a head for each task is drawn again, with a state that is cleared": """
        optimizer = torch.optim.Adam(net.parameters())
        for task in range(5):
            for layer in (net[0], net[2]):
                layer.reset_parameters()
            optimizer.state.clear()
            for step in range(4):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "a weight that is drawn under vmap": """
        def drawn(shift):
            return nn.init.normal_(torch.zeros(4, 4) + shift).sum()
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            torch.func.vmap(drawn, randomness="different")(torch.zeros(3))
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "two networks, one of which accumulates": """
        other = new()
        first = torch.optim.SGD(net.parameters(), lr=0.01)
        second = torch.optim.SGD(other.parameters(), lr=0.01)
        for step in range(24):
            inputs, labels = batch(step)
            F.cross_entropy(net(inputs), labels).backward()
            second.zero_grad()
            F.cross_entropy(other(inputs), labels).backward()
            second.step()
            if step % 2:
                first.step()
                first.zero_grad()
        """,
    "a polynomial by Horner's rule": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            bonus = 0.5
            bonus = 0.1 + inputs.mean() * bonus
            optimizer.zero_grad()
            (F.cross_entropy(net(inputs), labels) + 0 * bonus).backward()
            optimizer.step()
        """,
    "log-probabilities of an episode that goes on": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        critic = nn.Linear(4, 1)
        for_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
        scores = []
        for step in range(150):
            inputs, labels = batch(step)
            scores.append(F.log_softmax(net(inputs), 1)[:, 0].mean())
            for_critic.zero_grad()
            critic(inputs).square().mean().backward()
            for_critic.step()
            if step in (9, 19, 29):
                optimizer.zero_grad()
                (-torch.stack(scores).sum()).backward()
                optimizer.step()
                scores.clear()
        """,
    "a penalty that is summed over many steps before it goes backward": """
        scale = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        other = torch.optim.SGD([scale], lr=0.01)
        penalties, total = [], 0.0
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs)
            F.cross_entropy(scores, labels).backward()
            optimizer.step()
            penalties.append((scores.detach() * scale).square().mean())
            total = total + (scores.detach() * scale).std()
        other.zero_grad()
        (torch.stack(penalties).mean() * 2 + total / 40).backward()
        other.step()
        """,
    "the last outputs in a list of a fixed length": """
        from collections import deque
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        recent = deque(maxlen=10)
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            recent.append(net(x[:4]))
        """,
    "terms of many passes before one step": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            optimizer.zero_grad()
            total, terms = 0.0, []
            for part in range(12):
                inputs, labels = batch(part)
                total = total + F.cross_entropy(net(inputs), labels) / 24
                terms.append(net(inputs).square().mean() / 24)
            (total + sum(terms)).backward()
            optimizer.step()
        """,
    "a backward through the last steps of a state": """
        mix = (torch.randn(4, 4) * 0.3).requires_grad_()
        state, states = torch.zeros(8, 4), []
        for step in range(140):
            inputs, labels = batch(step)
            state = torch.tanh(inputs + state @ mix)
            states.append(state)
            F.cross_entropy(state, labels).backward(retain_graph=True)
            with torch.no_grad():
                mix.data.sub_(mix.grad, alpha=0.1)
                mix.grad = None
            if step % 20 == 19:
                state = state.detach()
                states = []
        """,
    "losses on one encoding that is made once": """
        codes = 2 * (x @ torch.eye(4).requires_grad_()).tanh()
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(80):
            optimizer.zero_grad()
            rows = torch.randint(64, (8,))
            F.cross_entropy(net(codes[rows]), y[rows]).backward(retain_graph=True)
            optimizer.step()
        """,
    "gradients of each term that the script takes and removes": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs)
            terms = F.cross_entropy(scores, labels), scores.square().mean()
            norms = []
            for term in terms:
                term.backward(retain_graph=True)
                norms.append(net[0].weight.grad.norm())
                for parameter in net.parameters():
                    parameter.grad = None
            (terms[0] / norms[0] + terms[1] / norms[1]).backward()
            optimizer.step()
        """,
    "losses of one encoding that go backward one after the other": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs)
            for term in (F.cross_entropy(scores, labels), scores.square().mean(), scores.std()):
                (0.1 * term).backward(retain_graph=True)
            optimizer.step()
        """,
    "a norm that is only measured, after the step": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
        """,
    "milestones in steps": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [8, 16], gamma=0.3)
        for epoch in range(4):
            for inputs, labels in DataLoader(TensorDataset(x, y), 8, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                schedule.step()
        """,
    "milestones of one step an epoch": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.3)
        for epoch in range(60):
            for inputs, labels in DataLoader(TensorDataset(x, y), 64, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                schedule.step()
        """,
    "batch norms in eval mode one by one": """
        net = nn.Sequential(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            for module in net.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a model whose own `train` keeps its stem in eval mode": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
                self.head = nn.Linear(8, 2)

            def train(self, mode=True):
                super().train(mode)
                self.stem.eval()
                return self

            def forward(self, given):
                return self.head(self.stem(given))

        net = Net().train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a stem in eval mode that has seen data": """
        net = nn.Sequential(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
        )
        with torch.no_grad():
            net[0](x)
        net[0].eval()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a frozen stem in eval mode": """
        net = nn.Sequential(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
        )
        net[0].requires_grad_(False).eval()
        optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a target in eval mode that nothing trains": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.target = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
                self.target.eval()
                self.online = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())

            def forward(self, given):
                with torch.no_grad():
                    aim = self.target(given)
                return self.online(given), aim

        net = Net()
        optimizer = torch.optim.SGD(net.online.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.mse_loss(*net(inputs)).backward()
            optimizer.step()
        """,
    "a frozen body, by its name": """
        for name, parameter in net.named_parameters():
            parameter.requires_grad = name.startswith("2") or len(name) == 0
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a first optimizer trains one head, a second the other": """
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
                self.first, self.second = nn.Linear(8, 2), nn.Linear(8, 2)

            def forward(self, x):
                x = self.body(x)
                return self.first(x), self.second(x)

        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for phase in range(2):
            for step in range(12):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs)[phase], labels).backward()
                optimizer.step()
            for part in (model.body, model.first):
                part.requires_grad_(False)
            optimizer = torch.optim.SGD(model.second.parameters(), lr=0.1)
        """,
    "a pretrained body is frozen, and the next optimizer holds it, too": """
        def pretrain(body):
            optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
            for step in range(60):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(body(inputs), labels).backward()
                optimizer.step()
        pretrain(net)
        net.requires_grad_(False)
        model = nn.Sequential(nn.Linear(4, 4), net)
        later = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(60):
            inputs, labels = batch(step)
            later.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            later.step()
        """,
    "each fold draws the weights again and makes its own optimizer": """
        for fold in range(5):
            for layer in (net[0], net[2]):
                layer.reset_parameters()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "the last layer begins again now and then": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(20):
            if step % 4 == 3:
                net[2].reset_parameters()
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "the critic's gradients are filled with zeros by hand": """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        first = torch.optim.SGD(generator.parameters(), lr=0.01)
        second = torch.optim.SGD(critic.parameters(), lr=0.01)
        for step in range(12):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 2))
            for parameter in critic.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            second.step()
            first.zero_grad()
            (-critic(generator(torch.randn(8, 2))).mean()).backward()
            first.step()
        """,
    "an optimizer around another": """
        class Around(torch.optim.Optimizer):
            def __init__(self, parameters, **settings):
                super().__init__(parameters, settings)
                self.base_optimizer = torch.optim.SGD(self.param_groups, **settings)
                self.param_groups = self.base_optimizer.param_groups

            @torch.no_grad()
            def step(self, closure):
                loss = torch.enable_grad()(closure)()
                moves = {p: 0.01 * p.grad for group in self.param_groups for p in group["params"]}
                for p, move in moves.items():
                    p.add_(move)
                self.zero_grad()
                torch.enable_grad()(closure)()
                for p, move in moves.items():
                    p.sub_(move)
                self.base_optimizer.step()
                self.zero_grad()
                return loss

        optimizer = Around(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)

            def closure():
                loss = F.cross_entropy(net(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
        """,
    "a step along the gradient of each input, for display": """
        inputs = list(x.split(8))
        for one in inputs:
            one.requires_grad_()
            F.cross_entropy(net(one), y[:8]).backward()
            print(one.grad.norm())
            one = one - 0.1 * one.grad
        """,
    "a plateau of a negated accuracy": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            if step in (5, 7, 9):
                neg_acc = -0.5 + step / 100
                scheduler.step(neg_acc)
        """,
    "plateaus in both directions": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        kind = torch.optim.lr_scheduler.ReduceLROnPlateau
        first, second, third = (kind(optimizer, mode, patience=0) for mode in ("min", "max", "min"))
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            val_loss, val_acc, accuracy_loss = 1.0, 0.5, 1.0
            if step in (5, 7):
                first.step(val_loss)
                second.step(val_acc)
                third.step(accuracy_loss)
        """,
    "updates by hand that write to the parameters": """
        rate = 0.1
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            for weight in net.parameters():
                weight.data = weight.data - rate * weight.grad
            for weight in net.parameters():
                weight = weight.detach().sub_(rate * weight.grad)
            changed = []
            for weight in net.parameters():
                weight = weight - rate * weight.grad
                changed.append(weight)
        """,
    "a fixed head of a first phase": """
        body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        head = nn.Linear(8, 2)
        pretrained = nn.Sequential(body, head)
        optimizer = torch.optim.Adam(body.parameters(), lr=0.01)
        for step in range(6):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(pretrained(inputs), labels).backward()
            optimizer.step()
        tuned = nn.Sequential(body, nn.Linear(8, 2))
        second = torch.optim.Adam(tuned.parameters(), lr=0.01)
        for step in range(20):
            inputs, labels = batch(step)
            second.zero_grad()
            F.cross_entropy(tuned(inputs), labels).backward()
            second.step()
        """,
    "a fixed head of a first phase, in a function": """
        def fit(model, parameters):
            optimizer = torch.optim.Adam(parameters, lr=0.01)
            for step in range(9):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()

        body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        fit(nn.Sequential(body, nn.Linear(8, 2)), body.parameters())
        model = nn.Sequential(body, nn.Linear(8, 2))
        fit(model, model.parameters())
        """,
    "samples for a score function, and a number that is only printed": """
        actor = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
        shown = 0.0
        for step in range(12):
            inputs, _ = batch(step)
            policy = torch.distributions.Normal(actor(inputs), 1.0)
            action = policy.sample()
            reward = -action.square().sum(1)
            optimizer.zero_grad()
            loss = -(policy.log_prob(action).sum(1) * reward).mean() + 1e-3
            loss.backward()
            optimizer.step()
            shown = shown + loss.item()
        """,
    "rates that a factor scales for good, and a warm-up that ended long ago": """
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scale = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.1 * min(1, n / 5))
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            scale.step()
        """,
    "inputs that a module keeps, and a tensor that the script moves itself": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.latest = nn.Linear(4, 2), None
                self.delta = torch.zeros(4, requires_grad=True)

            def forward(self, inputs):
                self.latest = inputs.requires_grad_()
                return self.body(inputs + self.delta)

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(20):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs.clone()), labels).backward()
            optimizer.step()
            with torch.no_grad():
                net.delta += 0.01 * net.delta.grad.sign()
            net.delta.grad = None
        """,
    "gradients that the script writes past autograd": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        F.cross_entropy(net(x), y).backward()
        for step in range(20):
            for parameter in net.parameters():
                parameter.grad.data.copy_(torch.randn(parameter.shape))
            optimizer.step()
        """,
    "folds that put the model and the optimizer back": """
        import copy
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
        for fold in range(6):
            net.load_state_dict(weights)
            optimizer.load_state_dict(state)
            for step in range(3):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "a reference that the loss goes by": """
        import copy
        reference = copy.deepcopy(net).eval()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(4):
            with torch.no_grad():
                wanted = reference(x)
            for step in range(8):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                away = F.mse_loss(net(inputs), wanted[step * 8 : step * 8 + 8])
                (F.cross_entropy(net(inputs), labels) + away).backward()
                optimizer.step()
        """,
    "clients that begin at what the server has": """
        first = {name: value.clone() for name, value in net.state_dict().items()}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for turn in range(3):
            learned = []
            for client in range(2):
                net.load_state_dict(first)
                for step in range(3):
                    inputs, labels = batch(step + 3 * client)
                    optimizer.zero_grad()
                    F.cross_entropy(net(inputs), labels).backward()
                    optimizer.step()
                learned.append({n: v.clone() for n, v in net.state_dict().items()})
            first = {n: (learned[0][n] + learned[1][n]) / 2 for n in first}
        """,
    "most of the data at once, beside a model without data": """
        net, skeleton = nn.Linear(4, 2), nn.Linear(4, 2, device="meta")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(40):
            optimizer.zero_grad()
            F.cross_entropy(net(x[:48]), y[:48]).backward()
            optimizer.step()
        """,
    "training that begins again, with an optimizer of its own": """
        first = {name: value.clone() for name, value in net.state_dict().items()}
        for fold in range(5):
            net.load_state_dict(first)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4 + fold):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "two losses, each for its own optimizer, of which one waits": """
        slow = torch.optim.SGD(net[0].parameters(), lr=0.01)
        fast = torch.optim.SGD(net[2].parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            F.cross_entropy(net(inputs), labels).backward()
            fast.step()
            fast.zero_grad()
            if step % 4 == 3:
                slow.step()
                slow.zero_grad()
        """,
    "accumulation": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            (F.cross_entropy(net(inputs), labels) / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "a GAN": """
        noise = torch.randn(64, 4)
        generator, critic = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 1)
        of_generator = torch.optim.Adam(generator.parameters())
        of_critic = torch.optim.Adam(critic.parameters())
        for step in range(16):
            real, _ = batch(step)
            with torch.no_grad():
                fake = generator(noise[:8])
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean()).backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(generator(noise[8:16] + step)).mean()).backward()
            of_generator.step()
        """,
    "a target network": """
        import copy
        target = copy.deepcopy(net)
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(16):
            inputs, _ = batch(step)
            with torch.no_grad():
                wanted = target(inputs).max(1).values
            optimizer.zero_grad()
            F.mse_loss(net(inputs).max(1).values, wanted + 1).backward()
            optimizer.step()
            with torch.no_grad():
                for old, now in zip(target.parameters(), net.parameters()):
                    old.lerp_(now, 0.1)
        """,
    "a closure": """
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        for step in range(8):
            inputs, labels = batch(step)

            def closure():
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs), labels)
                loss.backward()
                return loss

            optimizer.step(closure)
        """,
    "warm-up from 0, then a cosine for each batch": """
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        shape = lambda n: min(n / 4, 1) * (1 - n / 40)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        """,
    "a frozen backbone, a new head": """
        net.requires_grad_(False)
        net[2] = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "parts that take turns": """
        first = torch.optim.SGD(net[0].parameters(), lr=0.1)
        second = torch.optim.SGD(net[2].parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer = first if step % 2 else second
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "zeros in place of None, evaluation, plateau": """
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        for epoch in range(4):
            net.train()
            for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=8):
                optimizer.zero_grad(set_to_none=False)
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                scheduler.step(F.cross_entropy(net(x), y))
        """,
    "all data at once, as one tensor": """
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        """,
    "five folds, each in a function": """
        def fit(model, steps):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(steps):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()

        for fold in range(5):
            fit(net, 4)
            fit(new(), 4)
        """,
    "gradients changed by hand before each step": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            for parameter in net.parameters():
                parameter.grad.mul_(0.5)
        """,
    "two optimizers, one phase each": """
        parts = [nn.Linear(4, 4) for _ in range(2)]
        optimizers = [torch.optim.Adam(part.parameters()) for part in parts]
        for part, optimizer in zip(parts, optimizers):
            for step in range(12):
                inputs, _ = batch(step)
                loss = (part.forward(inputs) - inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
    "no optimizer": """
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
        """,
    "a recurrent state that is detached": """
        cell, head = nn.GRUCell(4, 8), nn.Linear(8, 2)
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
        state = torch.zeros(8, 8)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            state = cell(inputs, state.detach())
            F.cross_entropy(head(state), labels).backward()
            nn.utils.clip_grad_norm_([*cell.parameters(), *head.parameters()], 1.0)
            optimizer.step()
        """,
    "two losses, one backward each": """
        heads = nn.Linear(2, 2)
        optimizer = torch.optim.SGD([*net.parameters(), *heads.parameters()], lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            features = net(inputs)
            F.cross_entropy(features, labels).backward(retain_graph=True)
            F.cross_entropy(heads(features), labels).backward()
            optimizer.step()
        """,
    "dropout on purpose, for an average": """
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(16):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            if step % 8 == 7:
                with torch.no_grad():
                    torch.stack([net(x) for _ in range(8)]).mean(0)
        """,
}


def source_of(body: str) -> str:
    """The text of a program of ``HEALTHY``."""
    return _BEGIN + textwrap.dedent(body)
