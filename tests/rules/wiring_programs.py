"""Programs whose modules, data or seeds are put together wrongly, and honest look-alikes."""

from rules.loop_programs import LoopProgram

_STEP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    inputs, labels = batch(step)
    optimizer.zero_grad()
    F.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
"""
_CHAIN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.act = nn.ReLU()

    def forward(self, inputs):
        hidden = self.first(inputs)
        {act}
        return self.second(hidden)  # here

net = Net()
"""
_LISTED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.{kind}({star}[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) {times})
        self.last = nn.Linear(4, 2)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return self.last(inputs)

net = Net()
"""
_TOKENS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=0)  # here
        self.last = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.last(self.embed(tokens).mean(1))

net = Net()
tokens = torch.randint({least}, 3, (64, 24))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    rows = slice(step % 8 * 8, step % 8 * 8 + 8)
    optimizer.zero_grad()
    F.cross_entropy(net(tokens[rows]), y[rows]).backward()
    optimizer.step()
"""
_CHANNELS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, inputs):
        {line}
        return self.last(torch.relu(self.conv(inputs)).mean(2))

net = Net()
signals = torch.randn(64, 10, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    rows = slice(step % 8 * 8, step % 8 * 8 + 8)
    optimizer.zero_grad()
    F.cross_entropy(net(signals[rows]), y[rows]).backward()
    optimizer.step()
"""
_SCORES = """
net = nn.Conv1d(4, 5, 1)
signals, classes = torch.randn(64, 4, 7), torch.randint(5, (64, 7))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    rows = slice(step % 8 * 8, step % 8 * 8 + 8)
    scores = net(signals[rows])
    optimizer.zero_grad()
    {line}
    loss.backward()
    optimizer.step()
"""
_NOISY = """
from torch.utils.data import Dataset

class Noisy(Dataset):
    def __init__(self):
        self.x, self.y = x.clone(), y

    def __len__(self):
        return 64

    def __getitem__(self, i):
        one = self.x[i]
        {line}
        return one, self.y[i]

loader = DataLoader(Noisy(), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
"""
_EPOCHS = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(5):
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
"""
_VALUES = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(12):
    inputs, actions = batch(step)
    following, _ = batch(step + 1)
    q = net(inputs).gather(1, actions[:, None]).squeeze(1)
    best = net(following).{best}
    {detach}
    loss = F.{loss}(q, torch.ones(8) + 0.9 * best)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_DROPPED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, inputs):
        hidden = torch.relu(self.first(inputs))
        {line}
        return self.last(hidden)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(12):
    inputs, labels = batch(step)
    optimizer.zero_grad()
    F.cross_entropy(net.train()(inputs), labels).backward()
    optimizer.step()
    with torch.no_grad():
        net.eval()(x)
"""


def _both(text: str, *, here: bool = True, **lines: tuple[str, str]) -> str:
    """The program with a broken and a mended version of each of these lines."""
    out = []
    for line in text.splitlines():
        found = next((key for key in lines if f"{{{key}}}" in line), None)
        if found is None:
            out.append(line)
            continue
        broken, mended = lines[found]
        out.append(line.replace(f"{{{found}}}", broken) + (" # here" if here else "") + " # broken")
        out.append(line.replace(f"{{{found}}}", mended) + "  # mended")
    return "\n".join(out)


_HEAD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.body = nn.Linear(4, 8), nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.classifier(torch.tanh(self.body(torch.tanh(self.fc(inputs)))))

net = Net()
{load}
for name, parameter in net.named_parameters():
    if {kept!r} not in name:
        parameter.requires_grad = False  # here
{after}
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.05)
for step in range(12):
    inputs, labels = batch(step)
    optimizer.zero_grad()
    F.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
"""
_LOAD = "net.load_state_dict(Net().state_dict())"
_NEW = "net.classifier = nn.Linear(8, 2)"

_TEXTS = """
tokens = torch.randint(1, 20, (64, 24))
lengths = torch.randint(3, 10, (64,))
tokens[torch.arange(24) >= lengths[:, None]] = 0


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 2)
        self.reads = nn.{kind}

    def forward(self, given, lengths):
        {forward}


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(12):
    part = slice(step % 8 * 8, step % 8 * 8 + 8)
    optimizer.zero_grad()
    F.cross_entropy(net(tokens[part]{turned}, lengths[part]), y[part]).backward()
    optimizer.step()
"""


def _texts(kind: str, *forward: str, turned: str = "") -> str:
    lines = "\n        ".join(forward)
    return _TEXTS.format(kind=kind, forward=lines, turned=turned)


_BY_HAND = """
del net
inputs, hidden = torch.randn(256, 32), 64
labels = (inputs[:, 0] > 0).long()
scale, between = {scale}
weights = [torch.randn(32, hidden) * scale, torch.randn(hidden, hidden) * between]
weights += [torch.randn(hidden, 2) * 0.1]
for one in weights:
    one.requires_grad_()
for step in range(24):
    part = slice(step % 8 * 32, step % 8 * 32 + 32)
    given = torch.tanh(inputs[part] @ weights[0])  # here
    given = torch.tanh(given @ weights[1])
    F.cross_entropy(given @ weights[2], labels[part]).backward()
    with torch.no_grad():
        for one in weights:
            one -= 0.1 * one.grad
            one.grad = None
"""

BROKEN = {
    "a hook freezes a layer with a gradient of zero": LoopProgram(
        "GS103", ("The function at train.py:", "is a hook there, and may replace the gradient"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
        for step in range(64):
            if step == 5:
                for parameter in net[0].parameters():
                    parameter.register_hook(lambda g: g * 0.0)  # broken # here
                    parameter.requires_grad_(False)  # mended
                    parameter.grad = None  # mended
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "an advantage with a gradient": LoopProgram(
        "GS863", ("the advantage has a gradient", "in all"), """
        from torch.distributions import Categorical
        actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
        optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
        for step in range(12):
            inputs, labels = batch(step)
            policy = Categorical(logits=actor(inputs))
            actions = policy.sample()
            advantage = (actions == labels).float() - critic(inputs).squeeze(1)
            optimizer.zero_grad()
            gain = policy.log_prob(actions) * advantage  # broken # here
            gain = policy.log_prob(actions) * advantage.detach()  # mended
            loss = -gain.mean() + advantage.pow(2).mean()
            loss.backward()
            optimizer.step()
        """),
    "a list of edges that is viewed, not transposed": LoopProgram(
        "GS858", ("`net` gets a view [2, 40] of [40, 2]",), """
        class Graph(nn.Module):
            def __init__(self):
                super().__init__()
                self.own, self.around = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, nodes, edges):
                source, target = edges
                return self.own(nodes) + self.around(
                    torch.zeros_like(nodes).index_add(0, target, nodes[source])
                )

        net, pairs = Graph(), torch.randint(64, (40, 2))
        edges = pairs.view(2, -1)  # broken # here
        edges = pairs.t().contiguous()  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x, edges), y).backward()
            optimizer.step()
        """),
    "pictures that are reshaped, not permuted": LoopProgram(
        "GS858", ("`picture.reshape(c, h, w)` swaps the sizes (h, w, c)",), """
        class Pictures(torch.utils.data.Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, index):
                picture = torch.rand(6, 5, 3)
                h, w, c = picture.shape
                picture = picture.reshape(c, h, w)  # broken # here
                picture = picture.permute(2, 0, 1).reshape(c, h, w)  # mended
                return picture, index % 2

        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for picture, label in torch.utils.data.DataLoader(Pictures(), batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(net(picture), label).backward()
            optimizer.step()
        """),
    "adapters that are in no model": LoopProgram(
        "GS804", ("holds 2 parameters that belong to no model that runs", "These get no gradient"),
        """
        class Adapter(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base
                self.down = nn.Parameter(torch.randn(2, base.in_features))
                self.up = nn.Parameter(torch.randn(base.out_features, 2))

            def forward(self, given):
                return self.base(given) + given @ self.down.t() @ self.up.t()

        def adapted(model):
            found = []
            for name, layer in list(model.named_children())[:1]:
                adapter = Adapter(layer)
                setattr(model, name, adapter)  # mended
                found += [adapter.down, adapter.up]
            return found

        net[0].requires_grad_(False)
        adapters = adapted(net)
        optimizer = torch.optim.SGD([*adapters, *net[2].parameters()], lr=0.1)  # here
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "weights by hand, without a scale": LoopProgram(
        "GS881",
        ("of the values of a tanh are saturated in each of", "as in 1 other activation"),
        _BY_HAND.format(scale="1.0, 1.0  # broken\nscale, between = 32**-0.5, 64**-0.5  # mended"),
    ),
    "two weights of zeros, without a module": LoopProgram(
        "GS511",
        ("`inner`, `outer` are all zero in all", "none of them ever moves"),
        """
        del net
        inner = torch.zeros(4, 8)  # broken # here
        inner = torch.randn(4, 8)  # mended
        outer, bias = torch.zeros(8, 2), torch.zeros(2)
        parameters = [inner, outer, bias]
        for one in parameters:
            one.requires_grad_()
        for step in range(24):
            inputs, labels = batch(step)
            F.cross_entropy((inputs @ inner).relu() @ outer + bias, labels).backward()
            with torch.no_grad():
                for one in parameters:
                    one -= 0.1 * one.grad
                    one.grad = None
        """,
    ),
    "a state after padding": LoopProgram(
        "GS879",
        ("sequences, token 0, which is padding", "the last state of `reads`"),
        _texts(
            "GRU(8, 8, batch_first=True)",
            "states, _ = self.reads(self.words(given))",
            "return self.head(states[:, -1])  # broken # here",
            "return self.head(states[torch.arange(len(given)), lengths - 1])  # mended",
        ),
        "reads",
    ),
    "a hidden state after padding, with time first": LoopProgram(
        "GS879",
        ("of 8 sequences", "the state after it"),
        _texts(
            "LSTM(8, 8)",
            "given = self.words(given)",
            "given = nn.utils.rnn.pack_padded_sequence(  # mended",
            "    given, lengths, enforce_sorted=False  # mended",
            ")  # mended",
            "_, (hidden, _) = self.reads(given)  # here",
            "return self.head(hidden[-1])",
            turned=".T",
        ),
        "reads",
    ),
    "a new head that a filter of names freezes": LoopProgram(
        "GS873", ("`classifier` gives the scores", "2 other parameters of the model train"),
        _HEAD.format(
            load=_LOAD + "\n" + _NEW, kept="fc",
            after="net.classifier.requires_grad_(True)  # mended",
        ), "classifier",
    ),
    "a head of which the bias alone trains": LoopProgram(
        "GS873", ("1 other parameter of the model trains",), _HEAD.format(
            load=_NEW, kept="classifier.bias",
            after="net.classifier.requires_grad_(True)  # mended",
        ), "classifier",
    ),
    "an activation that never runs": LoopProgram(
        "GS857", ("`act` never ran", "output of `first`"),
        _both(_CHAIN, here=False, act=("pass", "hidden = self.act(hidden)")) + _STEP, "second",
    ),
    "two activations that never run, beside a list of layers": LoopProgram(
        "GS857", ("`act`, `other` never ran",),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)])
                self.act, self.other = nn.GELU(), nn.Tanh()

            def forward(self, inputs):
                for layer in self.layers:
                    inputs = layer(inputs)  # here
                    inputs = self.other(self.act(inputs))  # mended
                return inputs

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "layers.1",
    ),
    "a view for a permute": LoopProgram(
        "GS858", ("a view [8, 3, 10] of [64, 10, 3]",),
        _both(_CHANNELS, line=("inputs = inputs.view(8, 3, 10)", "inputs = inputs.mT")),
        "conv",
    ),
    "a view that swaps batch and time": LoopProgram(
        "GS858", ("a view [10, 8, 3] of [8, 10, 3]",),
        _both(_CHANNELS.replace("nn.Conv1d(3, 4, 3)", "nn.GRU(3, 4)").replace(
            "torch.relu(self.conv(inputs)).mean(2)", "self.conv(inputs)[1][0]"
        ), line=(
            "inputs = (inputs + 0).view(10, 8, 3)", "inputs = (inputs + 0).transpose(0, 1)"
        )),
        "conv",
    ),
    "scores [N, C, T] as rows of classes": LoopProgram(
        "GS858", ("the scores [8, 5, 7] are viewed as [56, 5]",),
        _both(_SCORES, line=(
            "loss = F.cross_entropy(scores.view(-1, 5), classes[rows].view(-1))",
            "loss = F.cross_entropy(scores.mT.reshape(-1, 5), classes[rows].view(-1))",
        )),
    ),
    "scores [N, T, C] that are viewed as [N, C, T]": LoopProgram(
        "GS858", ("the scores [8, 7, 5] are viewed as [8, 5, 7]", "the classes are the last axis"),
        _both(
            _SCORES.replace("Conv1d(4, 5, 1)", "Linear(4, 5)").replace("64, 4, 7)", "64, 7, 4)"),
            line=(
                "loss = F.cross_entropy(scores.view(8, 5, 7), classes[rows])",
                "loss = F.cross_entropy(scores.mT, classes[rows])",
            ),
        ),
    ),
    "scores of a convolution, with twice as many places as classes": LoopProgram(
        "GS858", ("the scores [8, 5, 10] are viewed as [80, 5]",),
        _both(_SCORES.replace("7)", "10)"), line=(
            "loss = F.cross_entropy(scores.view(-1, 5), classes[rows].view(-1))",
            "loss = F.cross_entropy(scores.mT.reshape(-1, 5), classes[rows].view(-1))",
        )),
    ),
    "one layer four times": LoopProgram(
        "GS859", ("the 4 members of `layers` are the same Sequential",),
        _both(
            _LISTED.replace("{kind}", "ModuleList").replace("{star}", ""),
            times=("] * 4", "for _ in range(4)]"),
        ) + _STEP, "layers",
    ),
    "one layer three times in a Sequential": LoopProgram(
        "GS859", ("the 3 members of `layers` are the same Sequential",),
        _both(
            _LISTED.replace("{kind}", "Sequential").replace("{star}", "*"),
            times=("] * 3", "for _ in range(3)]"),
        ) + _STEP, "layers",
    ),
    "a token as padding": LoopProgram(
        "GS860", ("token 0 is the padding index of `embed`",),
        _both(_TOKENS, here=False, least=("0", "1")), "embed",
    ),
    "a class of binary signals as padding": LoopProgram(
        "GS860", ("is between other tokens in 64 of 64 sequences",),
        """
        embed = nn.Embedding(2, 4, padding_idx=0)  # broken # here
        embed = nn.Embedding(2, 4)  # mended
        net = nn.Sequential(embed, nn.Flatten(), nn.Linear(64, 2))
        tokens = torch.arange(16).remainder(2).repeat(64, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(tokens + 0 * step), y).backward()
            optimizer.step()
            tokens = tokens.clone()
            tokens[:, 0] = torch.randint(2, (64,))
        """, "0",
    ),
    "noise into the data set": LoopProgram(
        "GS861", ("`Noisy` writes to its own `x` in 16 of 16 batches",),
        _both(_NOISY, line=(
            "one += 0.1 * torch.randn(4)", "one = one + 0.1 * torch.randn(4)",
        )), "Noisy",
    ),
    "a data set that is normalised again and again": LoopProgram(
        "GS861", ("in 16 of 16 batches",),
        _both(_NOISY, line=("one.sub_(1).div_(2)", "one = (one - 1) / 2")), "Noisy",
    ),
    "an iterator for all epochs": LoopProgram(
        "GS862", ("`batches` ended after 8 batches and was used 4 times more",),
        """
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        batches = iter(loader)  # broken # here
        batches = loader  # mended
        """ + "\n".join("        " + line for line in _EPOCHS.splitlines()), "batches",
    ),
    "a Q target that is not detached": LoopProgram(
        "GS863", ("the target of the loss has a gradient",),
        _both(
            _VALUES.replace("{best}", "max(1).values").replace("{loss}", "mse_loss"),
            here=False, detach=("pass", "best = best.detach()"),
        ),
    ),
    "a Q target that is not detached, by amax and a Huber loss": LoopProgram(
        "GS863", ("is not detached, in all",),
        _both(
            _VALUES.replace("{best}", "amax(1)").replace("{loss}", "smooth_l1_loss"),
            here=False, detach=("pass", "best = best.detach()"),
        ),
    ),
    "a functional dropout in evaluation": LoopProgram(
        "GS864", ("`F.dropout(hidden, 0.5)` stays active",),
        _both(_DROPPED, line=(
            "hidden = F.dropout(hidden, 0.5)",
            "hidden = F.dropout(hidden, 0.5, training=self.training)",
        )),
    ),
    "a functional dropout by its keyword": LoopProgram(
        "GS864", ("`nn.functional.dropout(hidden, p=0.2)` stays active",),
        _both(_DROPPED, line=(
            "hidden = nn.functional.dropout(hidden, p=0.2)",
            "hidden = nn.functional.dropout(hidden, p=0.2) if self.training else hidden",
        )),
    ),
    "embeddings normalized along the batch": LoopProgram(
        "GS825", ("embeddings [8, 8] are normalized along the batch",),
        """
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 8)

            def forward(self, inputs):
                return F.normalize(self.body(inputs), dim=0)  # broken # here
                return F.normalize(self.body(inputs), dim=1)  # mended

        net = Encoder()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, _ = batch(step)
            one, other = net(inputs), net(inputs + 0.1 * torch.randn_like(inputs))
            optimizer.zero_grad()
            F.cross_entropy(one @ other.T / 0.2, torch.arange(8)).backward()
            optimizer.step()
        """),
    "a triplet with its negative in the place of the positive": LoopProgram(
        "GS865", ("takes `pos` as its negative, and `neg` as its positive",),
        """
        criterion = nn.TripletMarginLoss(margin=0.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, _ = batch(step)
            anchor, pos, neg = net(inputs), net(inputs + 0.1), net(batch(step + 1)[0])
            loss = criterion(anchor, neg, pos)  # broken # here
            loss = criterion(anchor, pos, neg)  # mended
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """),
    "a softmax for several labels at once": LoopProgram(
        "GS510", ("the labels of a sample sum to up to 4", "have several labels"),
        """
        labels = (x > -0.5).float()
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            given = net(x[rows]).softmax(1)  # broken # here
            given = net(x[rows]).sigmoid()  # mended
            F.binary_cross_entropy(given, labels[rows]).backward()
            optimizer.step()
        """),
    "a few pixels of a mask are 255": LoopProgram(
        "GS510", ("lie between 0 and 255", "not between 0 and 1"),
        """
        mask = torch.zeros(64, 32)
        mask[:, 0] = 255.0  # broken
        mask[:, 0] = 1.0  # mended
        net = nn.Linear(4, 32)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(x[rows]), mask[rows]).backward()  # here
            optimizer.step()
        """),
    "a ratio of a policy to itself": LoopProgram(
        "GS863", ("the ratio `exp(new - old)` is exactly 1",),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, actions = batch(step)
            new = F.log_softmax(net(inputs), 1)[range(8), actions]
            old = F.log_softmax(net(inputs), 1)[range(8), actions]
            old = old.detach()  # mended
            ratio, gain = (new - old).exp(), actions - 0.5  # here
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """),
    "pairs of one sample": LoopProgram(
        "GS833", ("two inputs of the model have the same numbers",),
        """
        class Siamese(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 8)

            def forward(self, one, other):
                return F.pairwise_distance(self.body(one), self.body(other))

        net = Siamese()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(16):
            inputs, labels = batch(step)
            others = inputs.clone()  # broken
            others = inputs.roll(1, 0)  # mended
            distance = net(inputs, others)  # here
            optimizer.zero_grad()
            apart = (2 - distance).clamp(min=0) ** 2
            (labels * apart + (1 - labels) * distance ** 2).mean().backward()
            optimizer.step()
        """),
    "a mask that keeps the padding": LoopProgram(
        "GS103", ("its mask is 0 wherever the other factor is not",),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.last = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 2)
                self.beside = nn.Linear(4, 2)

            def forward(self, tokens):
                kept = (tokens == 0).unsqueeze(2).float()  # broken
                kept = (tokens != 0).unsqueeze(2).float()  # mended
                sums = (self.embed(tokens) * kept).sum(1)  # here
                beside = self.beside(self.embed(tokens).mean(1))
                return beside + self.last(sums / kept.sum(1).clamp(min=1))

        net, tokens = Net(), torch.randint(1, 9, (64, 6))
        tokens[:, 4:] = 0
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            F.cross_entropy(net(tokens[rows]), y[rows]).backward()
            optimizer.step()
        """),
    "a seed in each step": LoopProgram(
        "GS814", ("`torch.manual_seed(7)` is called in 12 steps of 12",),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            torch.manual_seed(7)  # broken # here
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs + torch.randn(8, 4)), labels).backward()
            optimizer.step()
        """,
    ),
    "a cosine in epochs, by batches": LoopProgram(
        "GS811", ("CosineAnnealingLR(T_max=3)", "then rises and falls again"),
        """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            scheduler.step()  # broken # here
            step % 8 == 7 and scheduler.step()  # mended
        """, "scheduler",
    ),
}  # fmt: skip

HEALTHY = {
    "views that keep the order of the sizes": """
        class Heads(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

            def forward(self, given):
                hidden = self.first(given)
                n, c = hidden.shape
                hidden = hidden.view(n, 2, c // 2).transpose(1, 2).reshape(n, c)
                c, n = hidden.t().shape
                hidden = hidden.t()
                c, n = hidden.size()
                hidden = hidden.t().reshape(n, c)
                n, c = hidden.shape
                hidden = hidden.view(n, c)
                return self.last(hidden)

        net = Heads()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a mean over the states of the words": _texts(
        "GRU(8, 8, batch_first=True)",
        "states, _ = self.reads(self.words(given))",
        "known = (given != 0).unsqueeze(2)",
        "return self.head((states * known).sum(1) / known.sum(1))",
    ),
    "a state after little padding": _texts(
        "GRU(8, 8, batch_first=True)",
        "_, last = self.reads(self.words(given[:, : int(lengths.max())]))",
        "return self.head(last[-1])",
    ),
    "a state after padding, of sequences in reverse": _texts(
        "GRU(8, 8, batch_first=True)",
        "_, last = self.reads(self.words(given)[:, torch.arange(23, -1, -1)])",
        "return self.head(last[-1])",
    ),
    "a state after padding, of sequences that are turned round": _texts(
        "GRU(8, 8, batch_first=True)",
        "_, last = self.reads(self.words(given).flip(1))",
        "return self.head(last[-1])",
    ),
    "adapters of a random model": _HEAD.format(load="", kept="fc", after=""),
    "a frozen head that was loaded": _HEAD.format(load=_LOAD, kept="fc", after=""),
    "a fixed classifier with orthogonal rows": _HEAD.format(
        load="nn.init.orthogonal_(net.classifier.weight)", kept="fc", after=""
    ),
    "pixels of 255 that the loss ignores": """
        mask = torch.zeros(64, 32)
        mask[:, 0] = 255.0
        net = nn.Linear(4, 32)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(net(x[rows]), mask[rows], reduction="none")
            (loss * (mask[rows] != 255)).mean().backward()
            optimizer.step()
        """,
    "a softmax and one label of several": """
        labels = F.one_hot(y, 2).float()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            F.binary_cross_entropy(net(x[rows]).softmax(1), labels[rows]).backward()
            optimizer.step()
        """,
    "an input beside a clone of it": """
        class Denoiser(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(4, 4)

            def forward(self, inputs, target):
                return F.mse_loss(self.body(inputs), target)

        net = Denoiser()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, _ = batch(step)
            optimizer.zero_grad()
            net(inputs, inputs.clone()).backward()
            optimizer.step()
        """,
    "columns normalized over the nodes of a graph, then a linear layer": """
        head = nn.Linear(4, 2, bias=False)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
        scale = nn.Parameter(torch.ones(4))
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(head(F.normalize(x * scale, dim=0)), y).backward()
            optimizer.step()
        """,
    "the cross-correlation of two views, of columns of unit norm": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            one, other = net(x), net(x + 0.1 * torch.randn_like(x))
            correlation = F.normalize(one, dim=0).T @ F.normalize(other, dim=0)
            optimizer.zero_grad()
            F.cross_entropy(correlation / 0.2, torch.arange(2)).backward()
            optimizer.step()
        """,
    "cosines with class weights in columns": """
        weight = nn.Parameter(torch.randn(2, 4))
        optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.05)
        for step in range(12):
            inputs, labels = batch(step)
            hidden = F.normalize(net(inputs)[:, :2], dim=1)
            optimizer.zero_grad()
            F.cross_entropy(8 * hidden @ F.normalize(weight, dim=0), labels).backward()
            optimizer.step()
        """,
    "an unused activation, beside the function": _CHAIN.format(act="hidden = torch.relu(hidden)")
    + _STEP,
    "an unused activation beside no layer, or a transposed convolution": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.last = nn.ConvTranspose1d(4, 4, 2), nn.Linear(2, 2)
                self.acts = nn.ModuleList([nn.ReLU(), nn.Tanh()])

            def forward(self, inputs):
                return self.last(torch.relu(self.up(inputs[:, :, None]).mean(1)))

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a bottleneck without activation, beside an unused one": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
                self.c, self.d = nn.Linear(2, 8), nn.Linear(8, 2)
                self.act = nn.ReLU()

            def forward(self, inputs):
                code = self.b(torch.tanh(self.a(inputs)))
                return self.d(torch.tanh(self.c(code)))

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a head that is shared on purpose": _LISTED.replace("{kind}", "ModuleList")
    .replace("{star}", "")
    .replace("[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) {times}", "[shared for _ in range(3)]")
    .replace("super().__init__()", "super().__init__()\n        shared = nn.Linear(4, 4)")
    + _STEP,
    "padding between two segments, and a token that is rarely left out": """
        net = nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(64, 2))
        tokens = torch.randint(1, 6, (64, 16))
        tokens[:, 5:9] = 0
        tokens[:, 14:] = 0
        tokens[::3, 2] = 0
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(12):
            rows = slice(step % 8 * 8, step % 8 * 8 + 8)
            optimizer.zero_grad()
            F.cross_entropy(net(tokens[rows]), y[rows]).backward()
            optimizer.step()
        """,
    "a cache that a data set fills": _NOISY.format(
        line="epoch == 0 and self.x.__setitem__(i, torch.tanh(one))"
    ),
    "an iterator that is made anew at its end": """
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        batches = iter(loader)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(30):
            try:
                inputs, labels = next(batches)
            except StopIteration:
                batches = iter(loader)
                inputs, labels = next(batches)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "a residual gradient, without a maximum": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, _ = batch(step)
            following, _ = batch(step + 1)
            loss = F.mse_loss(net(inputs)[:, 0], torch.ones(8) + 0.9 * net(following)[:, 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "a seed for each epoch, and another for each step": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for step in range(24):
            torch.manual_seed(step)
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs + torch.randn(8, 4)), labels).backward()
            optimizer.step()
            if step % 8 == 7:
                torch.manual_seed(7)
        """,
    "a cosine for each epoch, by batches": """
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        for epoch in range(4):
            for inputs, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                scheduler.step()
        """,
    "Monte Carlo dropout": _DROPPED.format(line="hidden = F.dropout(hidden, 0.1, training=True)"),
}
