"""Training loops whose loss, targets or gradients are wrong, in the format of ``loop_programs``."""

from __future__ import annotations

from rules.loop_programs import LoopProgram

BROKEN = {
    "a softmax over the batch": LoopProgram(
        "GS825", ("`log_softmax over dim 0` of [8, 2]", "in all 5 losses"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = F.log_softmax(net(inputs), dim=0)  # broken # here
            scores = F.log_softmax(net(inputs), dim=1)  # mended
            F.nll_loss(scores[:6], labels[:6]).backward()
            optimizer.step()
        """),
    "a cross entropy over the places": LoopProgram(
        "GS825", ("`log_softmax over dim 1` of [2, 4, 4]", "in the last axis"), """
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores, targets = net(inputs.view(2, 4, 4)), labels.view(2, 4)
            scores = scores.transpose(1, 2)  # mended
            F.cross_entropy(scores, targets).backward()  # here
            optimizer.step()
        """),
    "weights that start too small for the depth": LoopProgram(
        "GS610", ("nearer the loss", "start with a deviation of", "Kaiming's would be 0.3536"),
        """
        net = nn.Sequential(
            nn.Linear(4, 16), *(m for _ in range(6) for m in (nn.Linear(16, 16), nn.ReLU())),
            nn.Linear(16, 2),
        )
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.1)  # broken # here
                nn.init.kaiming_normal_(layer.weight)  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(120):
            inputs, _ = batch(step)
            labels = (inputs[:, 0] > 0).long()
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "data sorted by class": LoopProgram(
        "GS832", ("one class in 6 of 6 batches", "not shuffled"), """
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        labels = torch.arange(64) // 16
        for step in range(20):
            chosen = torch.arange(8) + step % 8 * 8  # broken
            chosen = torch.randperm(64)[:8]  # mended
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), labels[chosen]).backward()  # here
            optimizer.step()
        """),
    "nll_loss of scores": LoopProgram(
        "GS829", ("the raw scores [8, 2] of a layer", "in all 5 losses"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.nll_loss(net(inputs), labels)  # broken # here
            loss = F.nll_loss(net(inputs).log_softmax(1), labels)  # mended
            loss.backward()
            optimizer.step()
        """),
    "a term of the loss is a number": LoopProgram(
        "GS826", ("`scores.square().mean().item()` is a Python number", "in all 5 losses"), """
        def loss_of(scores, labels):
            penalty = scores.square().mean().item()  # broken # here
            penalty = scores.square().mean()  # mended
            return F.cross_entropy(scores, labels) + 0.1 * penalty

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss_of(net(inputs), labels).backward()
            optimizer.step()
        """),
    "a sample without a gradient": LoopProgram(
        "GS827", ("`Normal.sample()` cuts the graph in all 12 steps",), """
        encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            code = torch.distributions.Normal(encoder(inputs), 1.0)
            drawn = code.sample()  # broken # here
            drawn = code.rsample()  # mended
            likelihood = torch.distributions.Normal(decoder(drawn), 1.0).log_prob(inputs)
            (code.mean.square().mean() - likelihood.mean()).backward()
            optimizer.step()
        """),
    "a copy is trained in a function, and lost": LoopProgram(
        "GS824", ("is evaluated 2 times", "another `Sequential`"), """
        import copy

        def fit(net):
            net = copy.deepcopy(net)  # broken # here
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            losses = []
            for step in range(12):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        for attempt in range(2):
            fit(net)
            with torch.no_grad():
                net(x)
        """),
    "copies are trained in a function, the originals evaluated": LoopProgram(
        "GS824", ("is evaluated 2 times", "another `Sequential`"), """
        import copy

        def fit(net):
            net = copy.deepcopy(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(12):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
            return net

        for attempt in range(2):
            net = new()
            fit(net)  # broken
            net = fit(net)  # mended
            with torch.no_grad():
                net(x)  # here
        """),
    "clipped to a thousandth, 48 steps": LoopProgram(
        "GS607", ("every step is clipped, all 48", "to a norm of 0.001000"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(48):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)  # broken # here
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # mended
            optimizer.step()
        """, "optimizer"),
    "clipped by hand, 48 steps": LoopProgram(
        "GS607", ("every step is clipped",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(48):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            bound = 1e-3  # broken
            bound = 10.0  # mended
            for p in net.parameters():
                p.grad.mul_(min(1.0, bound / norm.item()))
            optimizer.step()
        """, "optimizer"),
    "five layers of sigmoids": LoopProgram(
        "GS610", ("over 12 samples", "nearer the loss"), """
        part = nn.Sigmoid  # broken
        part = nn.ReLU  # mended
        sizes = [4, 32, 32, 32, 32]
        body = [p for a, b in zip(sizes, sizes[1:]) for p in (nn.Linear(a, b), part())]
        net = nn.Sequential(*body, nn.Linear(32, 3))
        x = torch.randn(256, 4)
        y = x[:, :3].argmax(1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(300):
            some = torch.randint(256, (32,))
            optimizer.zero_grad()
            F.cross_entropy(net(x[some]), y[some]).backward()
            optimizer.step()
        """),
    "a column against a row": LoopProgram(
        "GS817", ("`mse_loss` broadcasts [8, 1] with [8] to [8, 8]",), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            labels = labels.float()
            labels = labels.unsqueeze(1)  # mended
            optimizer.zero_grad()
            loss = F.mse_loss(net(inputs), labels)  # here
            loss.backward()
            optimizer.step()
        """),
    "a row against a column": LoopProgram(
        "GS817", ("[8, 1] with [8] to [8, 8]",), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            outputs = net(inputs).squeeze(1)  # broken
            outputs = net(inputs)  # mended
            optimizer.zero_grad()
            loss = F.l1_loss(outputs, labels.float()[:, None])  # here
            loss.backward()
            optimizer.step()
        """),
    "a difference by hand": LoopProgram(
        "GS817", ("the `-` of the loss broadcasts [8, 1] with [8]",), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            outputs = net(inputs)
            outputs = outputs[:, 0]  # mended
            loss = (outputs - labels).square().mean()  # here
            loss.backward()
            optimizer.step()
        """),
    "a mask without channels": LoopProgram(
        "GS817", ("[8, 1, 2, 2] with [8, 2, 2] to [8, 8, 2, 2]",), """
        net = nn.Conv2d(1, 1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            pictures = inputs.view(8, 1, 2, 2)
            mask = pictures.abs()  # mended
            mask = inputs.view(8, 2, 2).abs()  # broken
            optimizer.zero_grad()
            loss = F.smooth_l1_loss(net(pictures), mask)  # here
            loss.backward()
            optimizer.step()
        """),
    "advantages in a column": LoopProgram(
        "GS817", ("the `*` of the loss broadcasts [8, 1] with [8]",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, actions = batch(step)
            chosen = F.log_softmax(net(inputs), 1).gather(1, actions[:, None])
            chosen = chosen.squeeze(1)  # mended
            advantages = torch.randn(8)
            optimizer.zero_grad()
            loss = -(chosen * advantages).mean()  # here
            loss.backward()
            optimizer.step()
        """),
    "cross entropy of one output": LoopProgram(
        "GS818", ("`log_softmax` runs over an axis of size 1 of [8, 1]", "in all 5 losses"), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels * 0)  # broken # here
            loss = F.binary_cross_entropy_with_logits(net(inputs)[:, 0], labels.float())  # mended
            loss.backward()
            optimizer.step()
        """),
    "a softmax of one output, in the model": LoopProgram(
        "GS818", ("`softmax` runs over an axis of size 1 of [8, 1]",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 1)

            def forward(self, inputs):
                return F.softmax(self.head(inputs), dim=1)  # broken # here
                return torch.sigmoid(self.head(inputs))  # mended

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.binary_cross_entropy(net(inputs), labels.float()[:, None]).backward()
            optimizer.step()
        """),
    "a softmax over the wrong axis": LoopProgram(
        "GS818", ("`log_softmax` runs over an axis of size 1 of [1, 2]",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = x[step % 64 : step % 64 + 1], y[step % 64 : step % 64 + 1]
            optimizer.zero_grad()
            scores = F.log_softmax(net(inputs), dim=0)  # broken # here
            scores = F.log_softmax(net(inputs), dim=1)  # mended
            F.nll_loss(scores, labels).backward()
            optimizer.step()
        """),
    "all labels are masked": LoopProgram(
        "GS819", ("all 40 targets that were read are ignore_index -100", "in all 5 batches"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            labels = labels.clone()
            labels[: 4 if step else 8] = -100  # mended
            labels[:20] = -100  # broken # here
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels, reduction="sum") / 8
            loss.backward()
            optimizer.step()
        """),
    "all labels are padding": LoopProgram(
        "GS819", ("ignore_index 0",), """
        criterion = nn.CrossEntropyLoss(ignore_index=0)  # broken
        criterion = nn.CrossEntropyLoss()  # mended
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            inputs, labels = batch(step)
            labels = labels * 0  # broken # here
            optimizer.zero_grad()
            loss = criterion(net(inputs), labels)
            loss.backward()
            optimizer.step()
        """),
    "ignored labels, and a NaN that is replaced": LoopProgram(
        "GS819", ("all 40 targets that were read are ignore_index -100",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            labels = labels.clone()
            labels[:] = -100  # broken # here
            optimizer.zero_grad()
            torch.nan_to_num(F.cross_entropy(net(inputs), labels)).backward()
            optimizer.step()
        """),
    "labels that are all of one class": LoopProgram(
        "GS820", ("are class 0 of 2, in 9 batches",), """
        wanted = "1"  # broken
        wanted = 1  # mended
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(12):
            inputs, labels = batch(step)
            labels = torch.tensor([int(one == wanted) for one in labels.tolist()])  # here
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
        """),
    "binary labels that are all 1": LoopProgram(
        "GS820", ("are 1, in", "the network can ignore"), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(64):
            inputs, labels = batch(step)
            labels = (labels >= 0).float()  # broken # here
            labels = labels.float()  # mended
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(net(inputs)[:, 0], labels)
            loss.backward()
            optimizer.step()
        """),
    "a mask of 0 and 1 that is divided by 255": LoopProgram(
        "GS510", ("are 0 and 0.003922, which is 1/255", "was divided by 255"), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        mask = (torch.arange(64) % 3 == 0).float()[:, None]
        mask = mask / 255  # broken
        for step in range(12):
            part = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(x[part]), mask[part]).backward()  # here
            optimizer.step()
        """),
    "a CTC loss of probabilities": LoopProgram(
        "GS829", ("`ctc_loss` gets numbers [6, 8, 5]", "log-probabilities"), """
        net = nn.Linear(4, 5)
        lengths, sizes = torch.full((8,), 6), torch.full((8,), 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            scores = net(torch.randn(6, 8, 4))
            given = scores.softmax(2)  # broken # here
            given = scores.log_softmax(2)  # mended
            optimizer.zero_grad()
            loss = F.ctc_loss(given, torch.randint(1, 5, (8, 2)), lengths, sizes)
            loss.backward()
            optimizer.step()
        """),
    "a cosine embedding loss with targets of 0 and 1": LoopProgram(
        "GS876", ("`cosine_embedding_loss` gets targets other than 1 and -1",), """
        net = nn.Linear(4, 8)
        criterion = nn.CosineEmbeddingLoss(margin=0.1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            same = (labels == labels.flip(0)).float()
            same[:2] = torch.tensor([0.0, 1.0])
            same = 2 * same - 1  # mended
            optimizer.zero_grad()
            criterion(net(inputs), net(inputs.flip(0)), same).backward()  # here
            optimizer.step()
        """),
    "pairs that are all positive": LoopProgram(
        "GS820", ("are 1, in", "the network can ignore"), """
        class Factors(nn.Module):
            def __init__(self):
                super().__init__()
                self.user, self.item = nn.Embedding(16, 4), nn.Embedding(16, 4)

            def forward(self, user, item):
                return (self.user(user) * self.item(item)).sum(1)

        net = Factors()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(12):
            user, item = torch.randint(16, (2, 32))
            liked = torch.ones(32)  # here
            liked[16:] = 0  # mended
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(user, item), liked).backward()
            optimizer.step()
        """),
    "a mask of zeros on a vector": LoopProgram(
        "GS821", ("the loss is 0 in all 12 backwards",), """
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.factor = nn.Parameter(torch.ones(4))

            def forward(self, inputs):
                return self.factor * inputs

        model = Scale()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            mask = (labels > 1).float()  # broken
            mask = (labels >= 0).float()  # mended
            losses = (model(inputs) - inputs.flip(1)).square().mean(1)
            optimizer.zero_grad()
            (losses * mask).mean().backward()  # here
            optimizer.step()
        """),
    "a mask of zeros": LoopProgram(
        "GS103", ("multiplies by a tensor without a gradient that is all zeros",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            mask = (labels > 1).float()  # broken
            mask = (labels >= 0).float()  # mended
            losses = F.cross_entropy(net(inputs), labels, reduction="none")
            optimizer.zero_grad()
            ((losses * mask).sum() / mask.sum().clamp(min=1)).backward()  # here
            optimizer.step()
        """),
    "a step past the gradient scaler": LoopProgram(
        "GS822", ("multiplied by the loss scale",), """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(inputs), labels)).backward()
            optimizer.step()  # broken # here
            scaler.step(optimizer)  # mended
            scaler.update()  # mended
        """, "optimizer"),
    "clipped before it is unscaled": LoopProgram(
        "GS808", ("while the loss scale is in them",), """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(inputs), labels)).backward()
            scaler.unscale_(optimizer)  # mended
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
            scaler.step(optimizer)
            scaler.update()
        """),
    "a scaled step, clipped": LoopProgram(
        "GS822", ("multiplied by the loss scale",), """
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
        for step in range(24):
            inputs, labels = batch(step)
            scaler.scale(F.cross_entropy(net(inputs), labels) / 2).backward()
            if step % 2:
                optimizer.step()  # broken # here
                scaler.step(optimizer)  # mended
                scaler.update()  # mended
                optimizer.zero_grad()
        """, "optimizer"),
    "an optimizer of the frozen part": LoopProgram(
        "GS823", ("all 2 parameters of `optimizer` are frozen", "No optimizer holds"), """
        net[0].requires_grad_(False)
        optimizer = torch.optim.SGD(net[0].parameters(), lr=0.1)  # broken # here
        optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)  # mended
        for step in range(12):
            inputs, labels = batch(step)
            net.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "frozen for an attack, and never thawed": LoopProgram(
        "GS823", ("all 4 parameters of `optimizer` are frozen",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.requires_grad_(False)  # broken # here
        for step in range(12):
            inputs, labels = batch(step)
            inputs = inputs.clone().requires_grad_()
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "the old head is still there, all else is frozen": LoopProgram(
        "GS804", ("holds only parameters of `head`", "`net.2` was set after that"), """
        net.requires_grad_(False)
        head = nn.Linear(8, 2)
        net[2] = head  # mended
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)  # here
        net[2] = nn.Linear(8, 2)  # broken
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "a head that is thawed after the optimizer was made": LoopProgram(
        "GS804", ("holds only parameters of `head`", "No optimizer holds"), """
        head = nn.Linear(8, 2)
        net.requires_grad_(False)
        net[2] = head  # mended
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)  # here
        net[2].requires_grad_(True)
        for step in range(12):
            inputs, labels = batch(step)
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            net.zero_grad()
        """, "optimizer"),
    "a copy is trained, the original evaluated": LoopProgram(
        "GS824", ("evaluated 4 times and never changes", "`copied`", "shapes, made at"), """
        import copy
        copied = copy.deepcopy(net)
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(copied(inputs), labels).backward()
            optimizer.step()
            if step % 3 == 2:
                with torch.no_grad():
                    net(x)  # broken # here
                    copied(x)  # mended
        """, "net"),
    "a copy is trained, the original tested at the end": LoopProgram(
        "GS824", ("is evaluated 3 times",), """
        import copy
        best = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for step in range(3):
                inputs, _ = batch(step)
                best(inputs)  # broken # here
                net(inputs)  # mended
        """, "best"),
    "a softmax over the places, flattened": LoopProgram(
        "GS825", ("`log_softmax over dim 1` of [2, 4, 5] goes into `nll_loss` as [8, 5]",), """
        net = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs.view(2, 4, 4))
            scores = scores.log_softmax(1)  # broken # here
            scores = scores.log_softmax(-1)  # mended
            F.nll_loss(scores.reshape(-1, 5), labels).backward()
            optimizer.step()
        """),
    "a softmax over the places, transposed": LoopProgram(
        "GS825", ("`log_softmax over dim 1` of [2, 4, 5]", "are in the last axis"), """
        net = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs.view(2, 4, 4))
            scores = scores.log_softmax(1)  # broken # here
            scores = scores.log_softmax(2)  # mended
            F.nll_loss(scores.transpose(1, 2), labels.view(2, 4)).backward()
            optimizer.step()
        """),
    "a softmax over the batch before a choice": LoopProgram(
        "GS825", ("`log_softmax over dim 0` of [8, 2] goes into `gather`",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs).log_softmax(0)  # broken # here
            scores = net(inputs).log_softmax(1)  # mended
            (-scores.gather(1, labels[:, None]).mean()).backward()
            optimizer.step()
        """),
    "a Huber loss by hand": LoopProgram(
        "GS817", ("the `-` of the loss broadcasts [8, 1] with [8] to [8, 8]",), """
        def huber(given, wanted):
            gap = (given - wanted).abs()  # here
            return torch.where(gap < 1, 0.5 * gap ** 2, gap - 0.5).mean()

        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            outputs = net(inputs)
            outputs = outputs[:, 0]  # mended
            huber(outputs, labels.float()).backward()
            optimizer.step()
        """),
    "a quantile loss by hand": LoopProgram(
        "GS817", ("the `-` of the loss broadcasts [8, 1] with [8] to [8, 8]",), """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            outputs = net(inputs)
            outputs = outputs[:, 0]  # mended
            gap = labels - outputs  # here
            torch.maximum(0.9 * gap, -0.1 * gap).mean().backward()
            optimizer.step()
        """),
}  # fmt: skip

#: What does on purpose what a rule looks for, or something like it.
HEALTHY = {
    "an ordering of all pairs, with one side detached": """
        scorer = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(scorer.parameters(), lr=0.1)
        for step in range(24):
            inputs, _ = batch(step)
            scores = scorer(inputs)
            order = torch.sign(inputs[:, :1] - inputs[:, 0])
            optimizer.zero_grad()
            F.softplus(-order * (scores - scores.detach().flatten())).mean().backward()
            optimizer.step()
        """,
    "a hinge of all pairs": """
        scorer = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(scorer.parameters(), lr=0.1)
        for step in range(24):
            inputs, _ = batch(step)
            first, second = scorer(inputs), scorer(inputs + 1)
            optimizer.zero_grad()
            F.relu(1 - (first - second.squeeze(1))).mean().backward()
            optimizer.step()
        """,
    "edges between all nodes": """
        class Edges(nn.Module):
            def __init__(self):
                super().__init__()
                self.source, self.target = nn.Linear(4, 1), nn.Linear(4, 1)

            def forward(self, nodes):
                return F.softplus(self.source(nodes) + self.target(nodes).squeeze(-1))

        edges = Edges()
        optimizer = torch.optim.SGD(edges.parameters(), lr=0.1)
        for step in range(24):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            F.mse_loss(edges(inputs), (inputs @ inputs.T).relu()).backward()
            optimizer.step()
        """,
    "positive and negative pairs in losses of two optimizers": """
        users, items = nn.Embedding(32, 4), nn.Embedding(32, 4)
        first = torch.optim.Adam(users.parameters(), lr=1e-2)
        second = torch.optim.Adam(items.parameters(), lr=1e-2)
        for step in range(24):
            who, what = torch.randint(32, (16,)), torch.randint(32, (16,))
            first.zero_grad()
            score = (users(who) * items(what)).sum(1)
            F.binary_cross_entropy_with_logits(score, torch.ones(16)).backward()
            first.step()
            second.zero_grad()
            other = (users(who) * items(torch.randint(32, (16,)))).sum(1)
            F.softplus(other).mean().backward()
            second.step()
        """,
    "a binary loss on the difference of two scores": """
        u, v = nn.Embedding(20, 8), nn.Embedding(20, 8)
        optimizer = torch.optim.SGD([*u.parameters(), *v.parameters()], lr=0.1)
        for step in range(12):
            users, liked, other = torch.randint(20, (3, 32))
            scores = (u(users) * v(liked)).sum(1) - (u(users) * v(other)).sum(1)
            loss = F.binary_cross_entropy_with_logits(scores, torch.ones(32))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "positive and negative pairs, each with a backward of its own": """
        u, v = nn.Embedding(20, 8), nn.Embedding(20, 8)
        optimizer = torch.optim.SGD([*u.parameters(), *v.parameters()], lr=0.1)
        for step in range(12):
            users, liked, other = torch.randint(20, (3, 32))
            optimizer.zero_grad()
            likes, others = (u(users) * v(liked)).sum(1), (u(users) * v(other)).sum(1)
            F.binary_cross_entropy_with_logits(likes, torch.ones(32)).backward()
            F.binary_cross_entropy_with_logits(-others, torch.ones(32)).backward()
            optimizer.step()
        """,
    "a ctc_loss of log-probabilities less those of a prior": """
        net = nn.Linear(6, 5)
        prior = torch.log(torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            given = F.log_softmax(net(torch.randn(6, 8, 6)), -1) - 0.3 * prior
            lengths, sizes = torch.full((8,), 6), torch.full((8,), 2)
            loss = F.ctc_loss(given, torch.randint(1, 5, (8, 2)), lengths, sizes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "a forecast of the steps that have a later value": """
        net, series = nn.Linear(3, 3), torch.randn(40, 3).cumsum(0)
        there = torch.arange(40) < 35
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for step in range(12):
            loss = F.mse_loss(net(series)[there], series[5:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "pairs of target 0 that pad a batch": """
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            targets = torch.ones(16)
            targets[::2], targets[12:] = -1, 0
            first, second = net(torch.randn(2, 16, 8))
            loss = F.cosine_embedding_loss(first, second, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "positive pairs in one loss, negative ones in another": """
        net = nn.Embedding(16, 4)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(12):
            center, context, other = net(torch.randint(16, (3, 32)))
            positive = F.binary_cross_entropy_with_logits((center * context).sum(1), torch.ones(32))
            optimizer.zero_grad()
            if step % 2:
                negative = (center * other).sum(1)
                loss = F.binary_cross_entropy_with_logits(negative, torch.zeros(32))
                (positive + loss).backward()
            else:
                (positive - F.logsigmoid(-(center * other).sum(1)).mean()).backward()
            optimizer.step()
        """,
    "places that a view makes of a layer's features": """
        net = nn.Linear(4, 20)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            digits = labels[:, None].expand(8, 5)
            F.cross_entropy(net(inputs).view(8, 4, 5), digits).backward()
            optimizer.step()
        """,
    "a mask that puts two axes together": """
        net = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores, targets = net(inputs.view(2, 4, 4)).log_softmax(-1), labels.view(2, 4)
            kept = torch.rand(2, 4) > 0.1
            F.nll_loss(scores[kept], targets[kept]).backward()
            optimizer.step()
        """,
    "a head that gets each class from a loss of its own, and samples that are only printed": """
        domain = nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*domain.parameters(), *net.parameters()], lr=0.1)
        for step in range(20):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            code = torch.distributions.Normal(net(inputs), 1.0)
            shown = code.sample().std().item()
            there = F.cross_entropy(domain(inputs), torch.zeros(8, dtype=torch.long))
            here = F.cross_entropy(domain(inputs + 1), torch.ones(8, dtype=torch.long))
            (there + here + code.rsample().square().mean()).backward()
            optimizer.step()
        """,
    "a target of numbers, flooding, a cross entropy by hand": """
        critic = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        floor = float("0.1")
        for step in range(12):
            inputs, labels = batch(step)
            value = critic(inputs)
            with torch.no_grad():
                following = critic(inputs + 1)
            optimizer.zero_grad()
            loss = (value.mean() - (1.0 + 0.9 * following.mean().item())) ** 2
            flooded = (value.square().mean() - floor).abs() + floor
            by_hand = F.nll_loss(value, labels) + value.logsumexp(1).mean()
            (loss + flooded + by_hand).backward()
            optimizer.step()
        """,
    "all pairs, on purpose": """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            scores = net(inputs)[:, 0]
            optimizer.zero_grad()
            ranks = scores.unsqueeze(1) - scores.unsqueeze(0)
            wanted = scores[:, None] - labels[None, :].float()
            quantiles = F.huber_loss(
                net(inputs).view(4, 2, 1).expand(4, 2, 2), torch.randn(4, 1, 2).expand(4, 2, 2)
            )
            (ranks.square().mean() + wanted.abs().mean() + quantiles).backward()
            optimizer.step()
        """,
    "as many features as samples": """
        net = nn.Linear(4, 8)
        mean = nn.Parameter(torch.zeros(8))
        optimizer = torch.optim.SGD([*net.parameters(), mean], lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            outputs = net(inputs)
            optimizer.zero_grad()
            spread = (outputs - outputs.mean(1, keepdim=True)).square().mean()
            (spread + (torch.randn(8, 8) - mean).square().mean()).backward()
            optimizer.step()
        """,
    "attention over one token": """
        class Pooled(nn.Module):
            def __init__(self):
                super().__init__()
                self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 2)

            def forward(self, inputs):
                tokens = inputs[:, None, :]
                weights = F.softmax(self.score(tokens), dim=1)
                return self.head((weights * tokens).sum(1)) + (weights * tokens[..., :1]).sum(1)

        net = Pooled()
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        net.score.requires_grad_(False)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a contrastive loss, the positive first": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(64):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            one = F.normalize(net(inputs), dim=1)
            other = F.normalize(net(inputs + 0.1 * torch.randn(8, 4)), dim=1)
            near, far = (one * other).sum(1, keepdim=True), one @ torch.randn(2, 16)
            F.cross_entropy(torch.cat([near, far], 1), torch.zeros(8).long()).backward()
            optimizer.step()
        """,
    "a ranking, the right one first": """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(64):
            inputs = torch.randn(8, 3, 4)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs).view(8, 3), torch.zeros(8).long()).backward()
            optimizer.step()
        """,
    "a GAN of binary cross entropies": """
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        bce, one, none = F.binary_cross_entropy_with_logits, torch.ones(8, 1), torch.zeros(8, 1)
        of_generator = torch.optim.Adam(generator.parameters())
        of_critic = torch.optim.Adam(critic.parameters())
        for step in range(64):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 4))
            of_critic.zero_grad()
            (bce(critic(real), one) + bce(critic(fake.detach()), none)).backward()
            of_critic.step()
            of_generator.zero_grad()
            bce(critic(fake), one).backward()
            of_generator.step()
        """,
    "a generator against a frozen critic": """
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1).requires_grad_(False)
        optimizer = torch.optim.Adam(generator.parameters())
        for step in range(64):
            optimizer.zero_grad()
            scores = critic(generator(torch.randn(8, 4)))
            F.binary_cross_entropy_with_logits(scores, torch.ones(8, 1)).backward()
            optimizer.step()
        """,
    "a class that is rare": """
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(64):
            inputs, labels = batch(step)
            labels = torch.zeros(8).long()
            labels[0] = int(step in (15, 40))
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "labels of which most are ignored": """
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(24):
            inputs, labels = batch(step)
            labels = torch.where(torch.arange(8) < 6, torch.tensor(-100), labels)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a head of zeros, and accumulation": """
        nn.init.zeros_(net[2].weight)
        nn.init.zeros_(net[2].bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(48):
            inputs, labels = batch(step)
            (F.cross_entropy(net(inputs), labels) / 8).backward()
            if step % 8 == 7:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "a loss of few digits": """
        net = net.bfloat16()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs.bfloat16()) * 1e-3, labels).backward()
            optimizer.step()
        """,
    "a gradient scaler, accumulation and clipping": """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(32):
            inputs, labels = batch(step)
            scaler.scale(F.cross_entropy(net(inputs), labels) / 2).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
    "unscaled by hand": """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(inputs), labels)).backward()
            for parameter in net.parameters():
                parameter.grad /= scaler.get_scale()
            optimizer.step()
        """,
    "a fused optimizer and a gradient scaler": """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(net(inputs), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    "clipped to a little less than usual": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(48):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
        """,
    "all parameters, the frozen ones too": """
        net[0].requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "an average of weights, by `.data`, evaluated": """
        import copy
        average = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            for old, now in zip(average.parameters(), net.parameters()):
                old.data.mul_(0.9).add_(now.data, alpha=0.1)
            if step % 4 == 3:
                with torch.no_grad():
                    average(x)
        """,
    "a reference policy": """
        import copy
        reference = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.no_grad():
            reference(x)
        for step in range(12):
            inputs, labels = batch(step)
            with torch.no_grad():
                before = F.log_softmax(reference(inputs), 1)
            optimizer.zero_grad()
            now = F.log_softmax(net(inputs), 1)
            (-(now - before)[:, 0].sigmoid().log().mean()).backward()
            optimizer.step()
        """,
    "the first weights, for comparison": """
        import copy
        before = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        with torch.no_grad():
            for step in range(3):
                print(net(batch(step)[0]).shape, before(batch(step)[0]).shape)
        """,
    "a second model is made between optimizer and loop": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        teacher = new().requires_grad_(False)
        for step in range(12):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            F.mse_loss(net(inputs), teacher(inputs)).backward()
            optimizer.step()
        """,
    "log-probabilities of the classes, flattened and exchanged": """
        net = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs.view(2, 4, 4)).transpose(1, 2).log_softmax(1)
            loss = F.nll_loss(scores.transpose(1, 2).reshape(-1, 5), labels)
            loss = loss + F.nll_loss(scores, labels.view(2, 4))
            loss = loss + F.nll_loss(scores.permute(0, 2, 1).flatten(0, 1), labels)
            loss.backward()
            optimizer.step()
        """,
    "a choice of places after a softmax over the classes": """
        net = nn.Linear(4, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs.view(2, 4, 4)).log_softmax(-1)
            last = torch.tensor([1, 3]).view(2, 1, 1).expand(2, 1, 5)
            target = torch.eye(5)[labels.view(2, 4)[:, 3]]
            (-(scores.gather(1, last)[:, 0] * target).sum(1).mean()).backward()
            optimizer.step()
        """,
    "a softmax over the places, of which one is chosen": """
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            scores = net(inputs.view(2, 4, 4)).log_softmax(1)  # where a span starts and ends
            start, end = scores.unbind(-1)
            loss = F.nll_loss(start, labels[:2]) + F.nll_loss(end, labels[:2] + 2)
            loss = loss - scores.gather(1, labels.view(2, 2, 2)[:, :1]).mean()
            loss.backward()
            optimizer.step()
        """,
    "each positive against each negative": """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            good, bad = net(inputs + 0.5)[:, 0], net(inputs)[:, 0]
            F.relu(1 - good.view(-1, 1) + bad).mean().backward()
            optimizer.step()
        """,
    "distances of all pairs, by a hinge": """
        net = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            points = net(inputs)
            squares = points.square().sum(1, keepdim=True)
            far = (squares + squares.view(-1) - 2 * points @ points.t()).clamp(min=1e-6).sqrt()
            same = labels[:, None] == labels
            torch.where(same, far, F.relu(1 - far)).mean().backward()
            optimizer.step()
        """,
}
