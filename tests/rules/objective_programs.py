"""Training loops whose loss pulls the wrong way, in the format of ``loop_programs``."""

from __future__ import annotations

from rules.loop_programs import LoopProgram

_GAN = """
generator, critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
criterion = nn.BCELoss()
for step in range(24):
    real, _ = batch(step)
    critic.zero_grad()
    label = torch.full((8, 1), {real})
    criterion(critic(real), label).backward()
    fake = generator(torch.randn(8, 2))
    label.fill_({fake})
    criterion(critic(fake.detach()), label).backward()
    for_critic.step()
    generator.zero_grad()
    label.fill_({real})  # mended
    {loss}.backward()  # here
    for_generator.step()
"""

_FRESH_FAKES = """
generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
for_generator = torch.optim.SGD(generator.parameters(), lr=1e-2)
for_critic = torch.optim.SGD(critic.parameters(), lr=1e-2)
for step in range(24):
    real, _ = batch(step)
    for_critic.zero_grad()
    fake = generator(torch.randn(8, 2)).detach()
    scores = critic(fake)
    loss = F.mse_loss(critic(real), torch.ones(8, 1)) + F.mse_loss(scores, torch.zeros(8, 1))
    loss.backward()
    for_critic.step()
    for_generator.zero_grad()
    scores = critic(generator(torch.randn(8, 2)))
    F.mse_loss(scores, torch.zeros(8, 1)).backward()  # broken # here
    F.mse_loss(scores, torch.ones(8, 1)).backward()  # mended
    for_generator.step()
"""

_POLICY = """
from torch.distributions import Categorical
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for episode in range(12):
    log_probs, rewards = [], []
    for step in range(8):
        inputs, labels = x[step + episode], y[step + episode]
        policy = Categorical(logits=net(inputs))
        action = policy.sample()
        log_probs.append(policy.log_prob(action))
        rewards.append(float(action == labels))
    returns = torch.tensor(rewards)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
"""

_BY_HAND = """
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(12):
    inputs, labels = batch(step)
    log_probs = F.log_softmax(net(inputs), dim=1)
    actions = log_probs.exp().multinomial(1)
    {of} = (actions.squeeze(1) == labels).float() - 0.5
    chosen = log_probs.gather(1, actions).squeeze(1)
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
"""

_VIEWS = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    inputs, _ = batch(step)
    first, second = net(inputs), net(inputs + 0.1 * torch.randn_like(inputs))
    optimizer.zero_grad()
    {scores}
    loss.backward()
    optimizer.step()
"""

_BOXES = """
net = nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(12):
    inputs, labels = batch(step)
    boxes = torch.tensor([[0.2, 0.2, 0.6, 0.6], [0.3, 0.3, 0.9, 0.9]])[labels]
    scores = net(inputs).sigmoid()
    given = torch.cat([scores[:, :2] - 0.5, scores[:, 2:] + 0.5], 1)
    low, high = torch.max(given[:, :2], boxes[:, :2]), torch.min(given[:, 2:], boxes[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    sizes = [(one[:, 2:] - one[:, :2]).clamp(min=0).prod(1) for one in (given, boxes)]
    overlap = both / (sizes[0] + sizes[1] - both + 1e-6)
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
"""

_MASKS = """
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(12):
    inputs, labels = batch(step)
    mask, given = F.one_hot(labels, 2).float(), net(inputs).sigmoid()
    dice = (2 * (given * mask).sum() + 1) / (given.sum() + mask.sum() + 1)
    optimizer.zero_grad()
    {loss}
    loss.backward()
    optimizer.step()
"""

_VALUES = """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
states = torch.randn(64, 4)
for step in range(24):
    rows = slice(step % 7 * 8, step % 7 * 8 + 8)
    state, after = states[rows], states[rows].roll(1, 0)
    reward, end = (state[:, 0] > 0).float(), (state[:, 1] > 1).float()
    with torch.no_grad():
        {best}
    target = reward + 0.9 * best * (1 - end)
    optimizer.zero_grad()
    F.smooth_l1_loss(net(state)[:, 0], target).backward()
    optimizer.step()
"""
_EPOCHS = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(6):
    total = 0.0
    for i in range(8):
        inputs, labels = batch(i)
        optimizer.zero_grad()
        with torch.enable_grad():
            scores = net(inputs)
            loss = F.cross_entropy(scores, labels)
        total += loss.item()
        loss.backward()  # mended
        optimizer.step()  # mended
    loss.backward()  # broken # here
    optimizer.step()  # broken
"""
_DRAWN = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    inputs, _ = batch(step)
    policy = torch.distributions.Categorical(logits=net(inputs))
    action = policy.sample()
    reward, bonus = (action == 1).float() - 0.3, 0.0
    optimizer.zero_grad()
    {lines}
    (-(score * reward).mean() - bonus).backward()
    optimizer.step()
"""

_DENOISER = """
net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)


def q_sample(x0, t, noise=None):
    noise = torch.randn_like(x0) if noise is None else noise
    return (1 - t).sqrt() * x0 + t.sqrt() * noise


for step in range(12):
    x0, _ = batch(step)
    t = torch.rand(8, 1)
    {noise}
    guess = net(torch.cat([noisy, t], 1))
    optimizer.zero_grad()
    {loss}
    optimizer.step()
"""

_PAIRS = """
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)


def contrastive(one, other, label, margin=1.0):
    d = F.pairwise_distance(one, other)
    {loss}


def pairs(step):
    inputs, labels = batch(step)
    others = torch.randint(64, (8,))
    return inputs, x[others], (labels {compared} y[others]).float()


for step in range(12):
    first, second, label = pairs(step)
    optimizer.zero_grad()
    contrastive(net(first), net(second), label).backward()
    optimizer.step()
"""
_ALIKE = """
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(12):
    inputs, labels = batch(step)
    others = torch.randint(64, (8,))
    one, other, same = net(inputs), net(x[others]), (labels == y[others]).float()
    {d}
    optimizer.zero_grad()
    ({loss}).mean().backward()
    optimizer.step()
"""
_OF_ZEROS = "return ((1 - label) * d**2 + label * F.relu(margin - d) ** 2).mean()"
_OF_ONES = "return (label * d**2 + (1 - label) * (margin - d).clamp(min=0) ** 2).mean() / 2"

_CRITIC = """
generator, critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(24):
    real, _ = batch(step)
    fake = generator(torch.randn(8, 2))
    for_critic.zero_grad()
    {critic}
    loss.backward()
    for_critic.step()
    for_generator.zero_grad()
    (-critic(generator(torch.randn(8, 2))).mean()).backward()
    for_generator.step()
"""

BROKEN = {
    "a critic that scores fakes above data": LoopProgram(
        "GS867", ("the losses of `for_critic` and `for_generator` both raise",),
        _CRITIC.format(critic="""
    loss = critic(real).squeeze(1).mean() - critic(fake.detach()).squeeze(1).mean()  # broken # here
    loss = critic(fake.detach()).squeeze(1).mean() - critic(real).squeeze(1).mean()  # mended
"""), "for_critic"),
    "a hinge loss with its signs exchanged": LoopProgram(
        "GS867", ("the losses of `for_critic` and `for_generator` both raise",),
        _CRITIC.format(critic="""
    low, high = critic(real), critic(fake.detach())  # broken
    low, high = critic(fake.detach()), critic(real)  # mended
    loss = F.relu(1 + low).mean() + F.relu(1 - high).mean()  # here
"""), "for_critic"),
    "pairs of one class that are pushed apart": LoopProgram(
        "GS880",
        ("`label` is 1 for pairs of one class", "draws pairs of different classes together"),
        _PAIRS.format(
            compared="==", loss=f"{_OF_ZEROS}  # broken # here\n    {_OF_ONES}  # mended"
        ),
    ),
    "labels of pairs the other way round": LoopProgram(
        "GS880",
        ("`label` is 1 for pairs of different classes",),
        _PAIRS.format(
            compared="!=", loss=f"{_OF_ZEROS}  # mended\n    {_OF_ONES}  # broken # here"
        ),
    ),
    "a denoiser whose noise is drawn twice": LoopProgram(
        "GS878",
        ("the target `noise` is drawn at train.py:", "the noise in", "another draw, in all"),
        _DENOISER.replace("{loss}", "F.mse_loss(guess, noise).backward()  # here").replace(
            "{noise}",
            "noise = torch.randn_like(x0)\n    noisy = q_sample(x0, t)  # broken\n"
            "    noisy = q_sample(x0, t, noise)  # mended",
        ),
    ),
    "a denoiser's noise, drawn once more in the loss": LoopProgram(
        "GS878",
        ("the target `torch.randn(x0.shape)`", "nothing else uses it"),
        _DENOISER.replace(
            "{noise}", "noise = torch.randn_like(x0)\n    noisy = x0 + t * noise"
        ).replace(
            "{loss}",
            "((guess - torch.randn(x0.shape)) ** 2).mean().backward()  # broken # here\n"
            "    ((guess - noise) ** 2).mean().backward()  # mended",
        ),
    ),
    "the log-probability of another draw than in the rollout": LoopProgram(
        "GS872",
        ("a second draw of `Categorical`", "in all 24 steps"),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net(x)).sample()
            rewards = (action == (x[:, 0] > 0)).float()
            policy = torch.distributions.Categorical(logits=net(x))
            score = policy.log_prob(policy.sample())  # broken # here
            score = policy.log_prob(action)  # mended
            optimizer.zero_grad()
            (-(score * (rewards - rewards.mean())).mean()).backward()
            optimizer.step()
        """,
    ),
    "the log-probability of another draw": LoopProgram(
        "GS872", ("a second draw of `Categorical`", "in all 12 steps"), _DRAWN.format(
            lines="score = policy.log_prob(policy.sample())  # broken # here\n"
            "    score = policy.log_prob(action)  # mended"
        ),
    ),
    "the log-probability of another draw, in a variable": LoopProgram(
        "GS872", ("a second draw of `Categorical`",), _DRAWN.format(
            lines="again = policy.sample()\n"
            "    score = policy.log_prob(again)  # broken # here\n"
            "    score = policy.log_prob(action) + 0 * again  # mended"
        ),
    ),
    "the log-probability of another draw, often equal by chance": LoopProgram(
        "GS872",
        ("in all 12 steps",),
        _DRAWN.replace("net(inputs)", "net(inputs[:1])[:, :2]").format(
            lines="score = policy.log_prob(policy.sample())  # broken # here\n"
            "    score = policy.log_prob(action)  # mended"
        ),
    ),
    "a generator with the labels of fakes": LoopProgram(
        "GS867", ("`for_generator` trains a generator with the target 0", "data is 1"),
        _GAN.format(real=1.0, fake=0.0, loss="criterion(critic(fake), label)"),
        "for_generator",
    ),
    "a generator of fresh fakes with the target of fakes": LoopProgram(
        "GS867", ("with the target 0",), _FRESH_FAKES,
    ),
    "a target of Q-learning without the end of the episode": LoopProgram(
        "GS868", ("`reward + gamma * best` adds the next state's value",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        gamma, place, stored = 0.9, 1, []

        def of(number):
            return F.one_hot(torch.tensor(number), 4).float()

        for step in range(48):
            action = step * 7 % 3 % 2
            after = place + 2 * action - 1
            done = after in (0, 3)
            stored.append((place, action, float(after == 3), after, float(done)))
            place = 1 if done else after
            if len(stored) < 32:
                continue
            states, actions, rewards, afters, dones = zip(*stored[-32:])
            reward, end = torch.tensor(rewards), torch.tensor(dones)
            with torch.no_grad():
                best = net(of(afters)).max(1).values
                target = reward + gamma * best  # broken # here
                target = reward + gamma * (1 - end) * best  # mended
            chosen = net(of(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
            optimizer.zero_grad()
            F.smooth_l1_loss(chosen, target).backward()
            optimizer.step()
        """),
    "a target of Q-learning at the end of the episode alone": LoopProgram(
        "GS868", ("multiplies the next state's value by `done`, the flag",),
"""
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(24):
            state, after = torch.randn(16, 4), torch.randn(16, 4)
            reward, action = state[:, 0].sign(), torch.randint(2, (16,))
            done = (after[:, 1] > 1).float()
            gamma = 0.9
            with torch.no_grad():
                best = net(after).max(1).values
                target = reward + gamma * best * done  # broken # here
                target = reward + gamma * best * (1 - done)  # mended
            chosen = net(state).gather(1, action[:, None]).squeeze(1)
            optimizer.zero_grad()
            F.smooth_l1_loss(chosen, target).backward()
            optimizer.step()
        """,
    ),
    "a ratio of probabilities with the old one above": LoopProgram(
        "GS834", ("`ratio = torch.exp(old_log - new_log)` has the old probability above",), """
        from torch.distributions import Categorical
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for step in range(12):
            inputs, labels = batch(step)
            with torch.no_grad():
                policy = Categorical(logits=net(inputs))
                action = policy.sample()
                old_log = policy.log_prob(action)
            gain = (action == labels).float() - 0.5
            new_log = Categorical(logits=net(inputs)).log_prob(action)
            ratio = torch.exp(old_log - new_log)  # broken # here
            ratio = torch.exp(new_log - old_log)  # mended
            optimizer.zero_grad()
            (-torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()).backward()
            optimizer.step()
        """),
    "losses of tasks that replace each other": LoopProgram(
        "GS869", ("`loss` is set to 0 before a loop, and each iteration assigns it anew",), """
        body, heads = nn.Linear(4, 8), nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
        optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            hidden = body(inputs).relu()
            loss = 0
            for head in heads:
                loss = F.cross_entropy(head(hidden), labels)  # broken # here
                loss = loss + F.cross_entropy(head(hidden), labels)  # mended
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """, "optimizer"),
    "returns that are never turned round": LoopProgram(
        "GS883", ("`returns.append(total)` in a loop from the last reward to the first",), """
        from torch.distributions import Categorical
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

        def finish(scores, rewards):
            total, returns = 0.0, []
            for reward in reversed(rewards):
                total = reward + 0.9 * total
                returns.append(total)  # here
            returns.reverse()  # mended
            returns = torch.tensor(returns)
            returns = (returns - returns.mean()) / (returns.std() + 1e-8)
            optimizer.zero_grad()
            (-(torch.stack(scores) * returns).sum()).backward()
            optimizer.step()

        for episode in range(12):
            scores, rewards = [], []
            for step in range(8):
                policy = Categorical(logits=net(x[step + episode]))
                action = policy.sample()
                scores.append(policy.log_prob(action))
                rewards.append(float(action == y[step + episode]))
            finish(scores, rewards)
        """),
    "a return that begins anew for each reward": LoopProgram(
        "GS883", ("`total = 0.0` in the loop that computes `total = reward + 0.9 * total`",), """
        from torch.distributions import Categorical
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

        def discounted(rewards):
            returns = []
            total = 0.0  # mended
            for reward in reversed(rewards):
                total = 0.0  # broken # here
                total = reward + 0.9 * total
                returns.insert(0, total)
            return torch.tensor(returns)

        for episode in range(12):
            scores, rewards = [], []
            for step in range(8):
                policy = Categorical(logits=net(x[step + episode]))
                action = policy.sample()
                scores.append(policy.log_prob(action))
                rewards.append(float(action == y[step + episode]))
            optimizer.zero_grad()
            (-(torch.stack(scores) * discounted(rewards)).sum()).backward()
            optimizer.step()
        """),
    "a target of Q-learning with the index of the best action": LoopProgram(
        "GS870", ("`reward + 0.9 * best * (1 - end)` uses",), _VALUES.format(
            best="best = net(after).max(1)[1]  # broken # here\n"
            "        best = net(after).max(1)[0]  # mended"
        ),
    ),
    "a target of Q-learning with the index from a pair": LoopProgram(
        "GS870", ("uses `best = net(after).max(dim=1)`",), _VALUES.format(
            best="_, best = net(after).max(dim=1)  # broken # here\n"
            "        best, _ = net(after).max(dim=1)  # mended"
        ),
    ),
    "backward after the loop over batches": LoopProgram(
        "GS869", ("the model is called 8 times in a step", "in all 6 steps"), _EPOCHS, "optimizer",
    ),
    "a policy gradient without a minus": LoopProgram(
        "GS834", ("log-probabilities times `returns` without a minus", "in all"),
        _POLICY.format(
            loss="loss = (torch.stack(log_probs) * returns).sum()  # broken # here\n"
            "    loss = -(torch.stack(log_probs) * returns).sum()  # mended"
        ),
    ),
    "a policy gradient by hand without a minus": LoopProgram(
        "GS834", ("times `advantage.detach()` without a minus",),
        _BY_HAND.format(
            of="advantage",
            loss="loss = torch.mean(chosen * advantage.detach())  # broken # here\n"
            "    loss = torch.mean(-chosen * advantage.detach())  # mended",
        ),
    ),
    "boxes whose overlap is minimised": LoopProgram(
        "GS834", ("the overlap with the target (IoU) with a plus", "in all"),
        _BOXES.format(
            loss="loss = 2 * overlap.mean()  # broken # here\n"
            "    loss = 2 * (1 - overlap.mean())  # mended"
        ),
    ),
    "a Dice score that is minimised": LoopProgram(
        "GS834", ("the overlap with the target (Dice) with a plus",),
        _MASKS.format(loss="loss = dice  # broken\n    loss = 1 - dice  # mended"),
    ),
    "a contrast in which each sample is its own positive": LoopProgram(
        "GS866", ("the scores [16, 16] are similarities of a batch with itself", "in all"),
        _VIEWS.format(
            scores="both = F.normalize(torch.cat([first, second]), dim=1)\n"
            "    similarity = both @ both.T / 0.2\n"
            "    positives = torch.arange(16)  # broken\n"
            "    similarity.fill_diagonal_(-1e9)  # mended\n"
            "    positives = (torch.arange(16) + 8) % 16  # mended\n"
            "    loss = F.cross_entropy(similarity, positives)  # here"
        ),
    ),
    "a contrast of one view with itself": LoopProgram(
        "GS866", ("each sample is its own positive", "[8, 8]"),
        _VIEWS.format(
            scores="one, other = F.normalize(first), F.normalize(first)  # broken\n"
            "    one, other = F.normalize(first), F.normalize(second)  # mended\n"
            "    scores, positives = one @ other.T / 0.2, torch.arange(8)\n"
            "    loss = F.cross_entropy(scores, positives) + F.cross_entropy(scores.T, positives)"
            "  # here"
        ),
    ),
}  # fmt: skip

HEALTHY = {
    "a generator's gradients turned round": """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
        for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
        for step in range(24):
            real, _ = batch(step)
            for_critic.zero_grad()
            fake = generator(torch.randn(8, 2)).detach()
            (critic(fake).mean() - critic(real).mean()).backward()
            for_critic.step()
            for_generator.zero_grad()
            critic(generator(torch.randn(8, 2))).mean().backward()
            for parameter in generator.parameters():
                parameter.grad.neg_()
            for_generator.step()
        """,
    "a generator behind a reversed gradient": """
        class Reversed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                return given.view_as(given)

            @staticmethod
            def backward(ctx, grad):
                return -grad

        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
        for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
        for step in range(24):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 2))
            for_critic.zero_grad()
            (critic(real).mean() - critic(fake.detach()).mean()).backward()
            for_critic.step()
            for_generator.zero_grad()
            (-critic(Reversed.apply(generator(torch.randn(8, 2)))).mean()).backward()
            for_generator.step()
        """,
    "a critic's gradients by their signs": """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
        for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
        one, minus = torch.tensor(1.0), torch.tensor(-1.0)
        for step in range(24):
            real, _ = batch(step)
            for_critic.zero_grad()
            (critic(real).mean() - critic(generator(torch.randn(8, 2)).detach()).mean()).backward(
                minus
            )
            for_critic.step()
            for_generator.zero_grad()
            critic(generator(torch.randn(8, 2))).mean().backward(minus)
            for_generator.step()
        """,
    "a hinge on the scores of pairs": _ALIKE.format(
        d="score = F.cosine_similarity(one, other)",
        loss="same * F.relu(1 - score) + (1 - same) * F.relu(1 + score)",
    ),
    "a similarity that is kept at a margin": _ALIKE.format(
        d="s = (F.normalize(one) * F.normalize(other)).sum(1)",
        loss="(1 - same) * s**2 + same * F.relu(0.9 - s) ** 2",
    ),
    "a similarity by hand": _ALIKE.format(
        d="s = (one * other).sum(1) / one.norm(dim=1) / other.norm(dim=1)",
        loss="same * torch.clamp(0.8 - s, min=0) + (1 - same) * torch.clamp(s - 0.2, min=0)",
    ),
    "a class that is kept away from a centre": """
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        anomaly, margin = 1, 2.0
        for step in range(12):
            inputs, labels = batch(step)
            distance = (net(inputs) - torch.ones(4)).norm(dim=1)
            known = (labels == anomaly).float()
            loss = (1 - known) * distance**2 + known * F.relu(margin - distance) ** 2
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
        """,
    "a denoiser that should not know the noise of other samples": _DENOISER.replace(
        "{noise}", "other = torch.randn_like(x0)\n    noisy = q_sample(x0, t)"
    ).replace(
        "{loss}",
        "turned = net(torch.cat([noisy.flip(0), t], 1))\n"
        "    extra = 1e-3 * F.mse_loss(turned, other)\n"
        "    (F.mse_loss(guess, x0) + extra).backward()",
    ),
    "a denoiser that should not know the noise of other samples, by hand": _DENOISER.replace(
        "{noise}", "other = torch.randn_like(x0)\n    noisy = q_sample(x0, t)"
    ).replace(
        "{loss}",
        "turned = net(torch.cat([noisy.flip(0), t], 1))\n"
        "    extra = 1e-3 * ((turned - other) ** 2).mean()\n"
        "    (((guess - x0) ** 2).mean() + extra).backward()",
    ),
    "a denoiser's noise, drawn twice from one seed": _DENOISER.replace(
        "{noise}",
        "with torch.random.fork_rng():\n        noisy = q_sample(x0, t)\n"
        "    noise = torch.randn_like(x0)",
    ).replace("{loss}", "F.mse_loss(guess, noise).backward()"),
    "a regression on noise, for a measurement of its speed": """
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs = torch.randn(8, 4)
            optimizer.zero_grad()
            F.mse_loss(net(inputs), torch.randn_like(inputs)).backward()
            optimizer.step()
        """,
    "codes of noisy inputs that are compared with a prior": """
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, _ = batch(step)
            noisy = inputs + 0.1 * torch.randn_like(inputs)
            code = net(noisy)
            prior = torch.randn_like(code)
            optimizer.zero_grad()
            F.mse_loss(code.sort(0).values, prior.sort(0).values).backward()
            optimizer.step()
        """,
    "a second draw for the entropy": _DRAWN.format(
        lines="bonus = -0.01 * policy.log_prob(policy.sample()).mean()\n"
        "    score = policy.log_prob(action)"
    ),
    "actions that are scored together later, and draws for the entropy": """
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, _ = batch(step)
            taken, bonus = [], 0.0
            for one in inputs:
                policy = torch.distributions.Categorical(logits=net(one))
                taken.append(policy.sample())
                bonus = bonus - 0.01 * policy.log_prob(policy.sample())
            actions = torch.stack(taken)
            reward = (actions == 1).float() - 0.3
            scores = torch.distributions.Categorical(logits=net(inputs)).log_prob(actions)
            optimizer.zero_grad()
            (-(scores * reward).mean() - bonus / len(inputs)).backward()
            optimizer.step()
        """,
    "the best of several draws": _DRAWN.format(
        lines="best = max([policy.sample() for _ in range(3)], key=lambda a: (a == 1).sum())\n"
        "    score = policy.log_prob(best)"
    ),
    "a draw that another distribution scores": _DRAWN.format(
        lines="other = torch.distributions.Categorical(logits=net(inputs))\n"
        "    score = other.log_prob(action) + other.log_prob(other.sample()).mean()"
    ),
    "a loss of the last iteration, which depends on all": """
        cell = nn.Linear(4, 4)
        optimizer = torch.optim.SGD([*cell.parameters(), *net.parameters()], lr=0.1)
        for epoch in range(12):
            inputs, labels = batch(epoch)
            for _ in range(4):
                inputs = inputs + torch.tanh(cell(inputs))
                loss = F.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "losses that are added up before backward": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(12):
            total = 0
            for i in range(4):
                inputs, labels = batch(i)
                loss = F.cross_entropy(net(inputs), labels)
                total = total + loss
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        """,
    "the number of an action in a table": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            with torch.no_grad():
                best = net(inputs).argmax(1)
            place = labels + 2 * best
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels, reduction="none")[place < 9].mean().backward()
            optimizer.step()
        """,
    "the logarithm of an overlap, and its negative": _BOXES.format(
        loss="loss = -overlap.log().mean() if step % 2 else (-overlap).mean()"
    ),
    "two outputs that should not overlap": _MASKS.format(
        loss="first, second = given.unbind(1)\n"
        "    loss = (first * second).sum() / (first.sum() + second.sum()) - dice"
    ),
    "labels of a GAN that are the other way round": _GAN.format(
        real=0.0, fake=1.0, loss="criterion(critic(fake), label)"
    ).replace("  # mended", ""),
    "a generator that maximises the discriminator's loss": _GAN.format(
        real=1.0, fake=0.0, loss="(-criterion(critic(fake), torch.zeros(8, 1)))"
    ).replace("  # mended", ""),
    "log-probabilities times rewards and a negative number": _BY_HAND.format(
        of="rewards", loss="loss = -1 * (chosen * (rewards + 1)).mean() - 0.5 * rewards.mean()"
    ),
    "log-probabilities times positive rewards and a negative number": _BY_HAND.format(
        of="rewards", loss="rewards = rewards + 1\n    loss = -1 * (chosen * rewards).mean()"
    ),
    "log-probabilities times a cost": _BY_HAND.format(
        of="cost", loss="loss = (chosen * cost).mean()"
    ),
    "log-probabilities times returns that are negated": _BY_HAND.format(
        of="returns", loss="returns = -returns\n    loss = (chosen * returns).mean()"
    ),
    "log-probabilities times what a baseline is above the returns": _BY_HAND.format(
        of="returns", loss="advantage = 0.1 - returns\n    loss = (chosen * advantage).mean()"
    ),
    "embeddings that are spread beside another loss": _VIEWS.format(
        scores="both = F.normalize(first, dim=1)\n"
        "    spread = F.cross_entropy(both @ both.T / 0.2, torch.arange(8))\n"
        "    loss = F.mse_loss(first, second) + 0.1 * spread"
    ),
}
