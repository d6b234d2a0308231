"""Programs with a term of the loss that does not do what it is there for, or with weights, rates
and inputs of another kind than they are taken for; each with its mended twin, and some that only
look like one. The format is that of ``loop_programs``."""

from rules.loop_programs import LoopProgram

_VAE = """
        class Vae(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.decoder = nn.Linear(32, 8), nn.Linear(4, 32)

            def forward(self, inputs):
                mean, log_variance = self.encoder(inputs).chunk(2, 1)
                code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
                return self.decoder(code), mean, log_variance

        net = Vae()
        data = torch.randn(64, 4) @ torch.randn(4, 32)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for step in range(150):
            inputs = data[torch.randint(64, (32,))]
            out, mean, log_variance = net(inputs)
            divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp())
"""
_STEP = """
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
_TASKS = """
        first, second = nn.Linear(4, 1), nn.Linear(4, 1)
        weights = nn.Parameter(torch.zeros(2))
        both = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.SGD([{"params": both}, {"params": [weights], "lr": 0.3}], lr=0.01)
        for step in range(24):
            inputs, _ = batch(step)
            errors = [F.mse_loss(net(inputs), x[:8, :1] + 2) for net in (first, second)]
"""
_QUANTIZED = """
        class Quantized(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
                self.codes = nn.Embedding(6, 2)

            def forward(self, inputs):
                z = self.encoder(inputs)
                chosen = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
                extra = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
                STRAIGHT
                return self.decoder(chosen), extra

        net = Quantized()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, _ = batch(step)
            out, extra = net(inputs)
            loss = F.mse_loss(out, inputs) + extra
"""
_ADAPTED = """
        class Adapted(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner
                self.A = nn.Parameter(torch.randn(2, 4))
                self.B = nn.Parameter(torch.zeros(8, 2))

            def forward(self, inputs):
                return self.inner(inputs) + inputs @ self.A.t() @ self.B.t()

        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""

BROKEN = {
    "divided by the accumulation steps twice": LoopProgram(
        "GS842",
        ("divided twice by 4",),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            for part in range(4):
                inputs, labels = batch(step + part)
                loss = F.cross_entropy(net(inputs), labels)
                loss = loss / 4  # broken # here
                (loss / 4).backward()
            optimizer.step()
        """,
    ),
    "a mean that is divided by the batch size": LoopProgram(
        "GS842",
        ("divided by the batch size 8 again",),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            loss = F.cross_entropy(net(inputs), labels)
            loss = loss / len(inputs)  # broken # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    "a gradient penalty without its graph": LoopProgram(
        "GS843",
        ("`0.1 * penalty` is made of gradients", "`create_graph=True`"),
        """
        def penalty_of(critic, inputs):
            inputs = inputs.clone().requires_grad_()
            out = critic(inputs).sum()
            grad, = torch.autograd.grad(out, inputs)  # broken # here
            grad, = torch.autograd.grad(out, inputs, create_graph=True)  # mended
            return (grad.norm(dim=1) - 1).square().mean()

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            penalty = penalty_of(net, inputs)
            loss = F.cross_entropy(net(inputs), labels) + 0.1 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    "a divergence of probabilities": LoopProgram(
        "GS844",
        ("the input of `kl_div` is probabilities",),
        """
        teacher = new().requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            given = net(inputs).softmax(1)  # broken
            given = net(inputs).log_softmax(1)  # mended
            loss = F.kl_div(given, teacher(inputs).softmax(1), reduction="batchmean")  # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    "a divergence from logarithms": LoopProgram(
        "GS844",
        ("the target of `kl_div` is log-probabilities",),
        """
        teacher, distance = new().requires_grad_(False), nn.KLDivLoss(reduction="batchmean")
        distance = nn.KLDivLoss(reduction="batchmean", log_target=True)  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            loss = distance(net(inputs).log_softmax(1), teacher(inputs).log_softmax(1))  # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    "adapters that are frozen with the rest": LoopProgram(
        "GS845",
        ("`0.A`, `0.B` is frozen", "1 such pair"),
        f"""
{_ADAPTED}
        net.requires_grad_(False)  # mended
        net[0] = Adapted(net[0])
        net.requires_grad_(False)  # broken # here
        net[2].requires_grad_(True)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            loss = F.cross_entropy(net(inputs), labels)
{_STEP}""",
        "0.B",
    ),
    "a mean beside a sum": LoopProgram(
        "GS846",
        ("collapsed to the prior", "counts 1024 times"),
        f"""
{_VAE}
            loss = F.mse_loss(out, inputs) + divergence.sum()  # broken # here
            loss = F.mse_loss(out, inputs, reduction="sum") + divergence.sum()  # mended
{_STEP}""",
    ),
    "a rate that was saved": LoopProgram(
        "GS847",
        ("learning rate 0.1 by the saved one, 1e-06",),
        """
        before = torch.optim.SGD(net.parameters(), lr=1e-6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.load_state_dict(before.state_dict())  # here
        optimizer.param_groups[0]["lr"] = 0.1  # mended
        del before
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    ),
    "an evaluation that is not normalized": LoopProgram(
        "GS848",
        ("evaluated on another scale",),
        """
        pixels = 120 + 40 * x
        mean, deviation = pixels.mean(), pixels.std()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            first = step % 4 * 16
            inputs = (pixels[first : first + 16] - mean) / deviation
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), y[first : first + 16]).backward()
            optimizer.step()
            if step % 4 == 3:
                inputs = pixels
                inputs = (pixels - mean) / deviation  # mended
                net.eval()
                with torch.no_grad():
                    net(inputs)  # here
                net.train()
        """,
    ),
    "an evaluation that is not normalized, beside one on the training data": LoopProgram(
        "GS848",
        ("inputs have mean 1", "in training"),
        """
        pixels = 120 + 40 * x
        mean, deviation = pixels[:40].mean(), pixels[:40].std()
        train, held = (pixels[:40] - mean) / deviation, pixels[40:]
        held = (held - mean) / deviation  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            chosen = torch.randperm(40)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(train[chosen]), y[chosen]).backward()
            optimizer.step()
            for inputs in (held, train) if step % 4 == 3 else ():
                with torch.no_grad():
                    net(inputs)  # here
        """,
    ),
    "weights of two tasks, without the logarithm": LoopProgram(
        "GS849",
        ("`exp` of a parameter", "it goes to zero"),
        f"""
{_TASKS}
            loss = sum((-w).exp() * error for w, error in zip(weights, errors))  # broken # here
            loss = sum((-w).exp() * error + w for w, error in zip(weights, errors))  # mended
{_STEP}""",
    ),
    "codes without a straight-through estimator": LoopProgram(
        "GS850",
        ("no gradient of the reconstruction reaches the encoder",),
        _QUANTIZED.replace("STRAIGHT", "chosen = z + (chosen - z).detach()  # mended") + _STEP,
    ),
    "cosines times a temperature": LoopProgram(
        "GS851",
        ("cosines times 0.1000",),
        """
        net = nn.Linear(4, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, _ = batch(step)
            one, other = (F.normalize(net(inputs + 0.1 * torch.randn(8, 4)), dim=1) for _ in "ab")
            scores = one @ other.t() * 0.1  # broken # here
            scores = one @ other.t() / 0.1  # mended
            loss = F.cross_entropy(scores, torch.arange(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    "a layer that is made in forward": LoopProgram(
        "GS852",
        ("forward makes new parameters in all 8 steps",),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(4, 8)
                self.last = nn.Linear(8, 2)  # mended

            def forward(self, inputs):
                last = nn.Linear(8, 2)  # broken # here
                last = self.last  # mended
                return last(self.first(inputs).relu())

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    ),
    "an Adam for each step": LoopProgram(
        "GS853",
        ("is created again for each step",),
        """
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)  # mended
        for step in range(8):
            optimizer = torch.optim.Adam(net.parameters(), lr=0.01)  # broken # here
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    ),
    "betas that are swapped": LoopProgram(
        "GS854",
        ("betas (0.999, 0.9)",),
        """
        optimizer = torch.optim.AdamW(net.parameters(), betas=(0.999, 0.9))  # broken # here
        optimizer = torch.optim.AdamW(net.parameters(), betas=(0.9, 0.999))  # mended
        for step in range(8):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
        "optimizer",
    ),
    "cleared in the inner loop": LoopProgram(
        "GS855",
        ("between the 4 backwards of a step, in all 8 steps",),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()  # mended
            for part in range(4):
                optimizer.zero_grad()  # broken # here
                inputs, labels = batch(step + part)
                (F.cross_entropy(net(inputs), labels) / 4).backward()
            optimizer.step()
        """,
    ),
    "a batch norm with the momentum of another library": LoopProgram(
        "GS856",
        ("`1`: with momentum 0.001000, 91% of the running mean and variance", "after 96 batches"),
        """
        y = (x[:, 0] > 0).long()
        norm = nn.BatchNorm1d(8, momentum=0.001)  # broken
        norm = nn.BatchNorm1d(8)  # mended
        net = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(96):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            net(x)
        """,
    ),
    "masks of classes that ToTensor divides by 255": LoopProgram(
        "GS820",
        ("are class 0 of 3", "`self.scale(mask).squeeze(0).long()` rounds them down"),
        """
        import numpy
        from torchvision.transforms import ToTensor

        class Masks(torch.utils.data.Dataset):
            def __init__(self):
                self.scale = ToTensor()

            def __len__(self):
                return 48

            def __getitem__(self, index):
                mask = (numpy.arange(64).reshape(8, 8, 1) + index) % 3
                mask = mask.astype(numpy.uint8)
                picture = torch.from_numpy(mask[..., 0]).float()[None] + 0.1 * torch.randn(1, 8, 8)
                mask = self.scale(mask).squeeze(0).long()  # broken # here
                mask = torch.from_numpy(mask[..., 0]).long()  # mended
                return picture, mask

        net = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        for epoch in range(8):
            for picture, mask in DataLoader(Masks(), batch_size=8):
                optimizer.zero_grad()
                F.cross_entropy(net(picture), mask).backward()
                optimizer.step()
        """,
    ),
    "a batch norm without momentum": LoopProgram(
        "GS856",
        ("`1`: momentum is 0",),
        """
        norm = nn.BatchNorm1d(8, momentum=0)  # broken
        norm = nn.BatchNorm1d(8)  # mended
        net = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            net.train()
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                net(x)
        """,
    ),
}

HEALTHY = {
    "a layer that is made at the first call": """
        class Net(nn.Module):
            def forward(self, inputs):
                if not hasattr(self, "last"):
                    self.last = nn.Linear(4, 2)
                return self.last(inputs)

        net = Net()
        net(x)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "an Adam for each task": """
        import copy
        for task in range(8):
            one = copy.deepcopy(net)
            optimizer = torch.optim.Adam(one.parameters(), lr=0.01)
            inputs, labels = batch(task)
            optimizer.zero_grad()
            F.cross_entropy(one(inputs), labels).backward()
            optimizer.step()
        """,
    "two backwards, the first for a move of the weights": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            for move in (0.05, -0.05):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                if move > 0:
                    moved = [0.05 * p.grad.clone() for p in net.parameters()]
                for p, by in zip(net.parameters(), moved):
                    p.data.add_(by if move > 0 else -by)
            optimizer.step()
        """,
    "a mean over a square of pairs, with as many backwards": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            for part in range(3):
                inputs, _ = batch(step + part)
                out = net(inputs)
                (torch.cdist(out, out).sum() / 8 / 8).backward()
            optimizer.step()
        """,
    "as many parts of a step as there are samples": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            for part in range(8):
                inputs, labels = batch(step + part)
                (F.cross_entropy(net(inputs), labels) / 8).backward()
            optimizer.step()
        """,
    "an adversarial example": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            given = inputs.clone().requires_grad_()
            grad, = torch.autograd.grad(F.cross_entropy(net(given), labels), given)
            moved = inputs + 0.1 * grad.sign()
            level = torch.tensor(0.1)
            loss = (F.cross_entropy(net(moved), labels) - level).abs() + level
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "a penalty that is only printed": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            given = inputs.clone().requires_grad_()
            grad, = torch.autograd.grad(net(given).sum(), given)
            penalty = (grad.norm(dim=1) - 1).square().mean()
            loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(penalty.item())
        """,
    "a divergence of logarithms from logarithms": """
        teacher = new().requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            given, target = net(inputs).log_softmax(1), teacher(inputs).log_softmax(1)
            loss = F.kl_div(given, target, reduction="batchmean", log_target=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "an adapter that waits beside one that trains": f"""
{_ADAPTED}
        class Several(Adapted):
            def __init__(self, inner):
                super().__init__(inner)
                first, zero = self.A, self.B
                del self.A, self.B
                self.A = nn.ParameterDict({{"one": first, "two": first.data.clone()}})
                self.B = nn.ParameterDict({{"one": zero, "two": zero.data.clone()}})

            def forward(self, inputs):
                return self.inner(inputs) + inputs @ self.A["one"].t() @ self.B["one"].t()

        net.requires_grad_(False)
        net[0] = Several(net[0])
        for part in (net[0].A, net[0].B):
            part["two"].requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            loss = F.cross_entropy(net(inputs), labels)
{_STEP}""",
    "a small weight of the divergence": f"""
{_VAE}
            loss = F.mse_loss(out, inputs) + 1e-4 * divergence.sum()
{_STEP}""",
    "a schedule that goes on": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        saved = optimizer.state_dict()
        saved["param_groups"][0]["lr"] = 1e-6
        optimizer.load_state_dict(saved)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, step / 4)
        """,
    "noise of every size, and samples of it": """
        net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 4 * 16
            clean = x[first : first + 16]
            noisy = clean + torch.rand(16, 1) * torch.randn(16, 4)
            optimizer.zero_grad()
            F.mse_loss(net(noisy), clean).backward()
            optimizer.step()
        with torch.no_grad():
            state = 80 * torch.randn(16, 4)
            for level in (80, 40, 20, 10, 5, 2, 1, 0.5):
                net(state)
                state = state / 2
        """,
    "weights that a softmax bounds": f"""
{_TASKS}
            loss = (weights.softmax(0) * torch.stack(errors)).sum()
{_STEP}""",
    "two networks that teach each other": """
        one, other = nn.Linear(4, 2), nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
        for step in range(8):
            inputs, labels = batch(step)
            a, b = one(inputs), other(inputs)
            loss = F.cross_entropy(a, labels) + F.cross_entropy(b, labels)
            loss = loss + F.mse_loss(a, b.detach()) + F.mse_loss(b, a.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "cosines of a softmax with its usual scale": """
        net = nn.Linear(4, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            inputs, _ = batch(step)
            one, other = (F.normalize(net(inputs + 0.1 * torch.randn(8, 4)), dim=1) for _ in "ab")
            loss = F.cross_entropy(one @ other.t() / 0.5, torch.arange(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
}
