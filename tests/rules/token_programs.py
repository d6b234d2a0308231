"""Trainings on tokens whose targets lie wrongly to them, each with its mended twin, and some that
only look like one. The format is that of ``loop_programs``."""

from rules.loop_programs import LoopProgram

_TOKENS = """
        class Net(nn.Module):
            def __init__(self, causal=True):
                super().__init__()
                self.embedding = nn.Embedding(11, 16)
                self.qkv, self.head, self.causal = nn.Linear(16, 48), nn.Linear(16, 11), causal

            def forward(self, tokens):
                states = self.embedding(tokens)
                q, k, v = self.qkv(states).chunk(3, -1)
                states = states + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
                return self.head(states)

        def loss_of(scores, targets, **options):
            return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), **options)

        data = torch.randint(1, 11, (16, 9))
"""
_TRAIN = """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
"""
_END = """
            loss.backward()
            optimizer.step()
        """
#: Sequences of 2, 3 or 8 tokens, padded with 0.
_LENGTHS = """
        lengths = torch.tensor([2, 2, 3, 8]).repeat(4)
        there = torch.arange(8) < lengths[:, None]
        tokens = data[:, :8].masked_fill(~there, 0)
        classes = torch.where(there, 1 + (tokens + 1) % 2, 0)
"""

BROKEN = {
    "targets that are not shifted": LoopProgram(
        "GS838",
        ("same token as the input", "not shifted by one"),
        f"""
{_TOKENS}
        net = Net(){_TRAIN}
            inputs, targets = data[:, :-1], data[:, :-1].clone()  # broken
            inputs, targets = data[:, :-1], data[:, 1:]  # mended
            loss = loss_of(net(inputs), targets)  # here
{_END}""",
    ),
    "a decoder that gets its targets": LoopProgram(
        "GS838",
        ("not shifted by one",),
        f"""
        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.gru = nn.Embedding(11, 16), nn.GRU(16, 16)
                self.head = nn.Linear(16, 11)

            def forward(self, tokens, state):
                return self.head(self.gru(self.embedding(tokens), state)[0])

        net, source = Decoder(), torch.randn(1, 16, 16)
        data = torch.randint(1, 11, (9, 16)){_TRAIN}
            scores = net(data[1:], source)  # broken # here
            scores = net(data[:-1], source)  # mended
            loss = F.cross_entropy(scores.view(-1, 11), data[1:].reshape(-1))
{_END}""",
    ),
    "targets that are shifted twice": LoopProgram(
        "GS877",
        ("two positions after the input token", "the targets are shifted twice"),
        f"""
{_TOKENS}
        net = Net(){_TRAIN}
            inputs, targets = data[:, :-1], data[:, 1:]
            scores = net(inputs)  # broken # here
            scores, targets = scores[:, :-1], targets[:, 1:]  # broken
            scores = net(inputs)  # mended
            loss = loss_of(scores, targets)
{_END}""",
    ),
    "labels that the model shifts again": LoopProgram(
        "GS877",
        ("`labels` are shifted already, and the model shifts them again",),
        f"""
{_TOKENS}
        class Labelled(Net):
            def forward(self, tokens, labels):
                labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
                return loss_of(super().forward(tokens), labels, ignore_index=-100)

        net = Labelled(){_TRAIN}
            tokens, labels = data[:, :-1], data[:, 1:]  # broken
            tokens, labels = data[:, :-1], data[:, :-1]  # mended
            loss = net(tokens, labels)  # here
{_END}""",
    ),
    "attention without a causal mask": LoopProgram(
        "GS839",
        ("depends on later tokens",),
        f"""
{_TOKENS}
        net = Net(causal=False)  # broken
        net = Net()  # mended
{_TRAIN}
            loss = loss_of(net(data[:, :-1]), data[:, 1:])
{_END}""",
    ),
    "a model without a causal mask, with the classes in axis 1": LoopProgram(
        "GS839",
        ("depends on later tokens",),
        f"""
{_TOKENS}
        net = Net(causal=False)  # broken
        net = Net()  # mended
{_TRAIN}
            loss = F.cross_entropy(net(data[:, :-1]).transpose(1, 2), data[:, 1:])
{_END}""",
    ),
    "padding that counts": LoopProgram(
        "GS840",
        ("of the targets are padding (class 0, at token 0)",),
        f"""
{_TOKENS}
        net = Net(causal=False)
{_LENGTHS}{_TRAIN}
            loss = loss_of(net(tokens), classes)  # broken
            loss = loss_of(net(tokens), classes, ignore_index=0)  # mended
{_END}""",
    ),
    "an answer that is ignored in the place of the prompt": LoopProgram(
        "GS819",
        ("the targets of the first tokens count", "the prompt is trained, and the answer is not"),
        f"""
{_TOKENS}
        net = Net()
        labels = data.clone()
        labels[:, 4:] = -100  # broken # here
        labels[:, :4] = -100  # mended
{_TRAIN}
            loss = loss_of(net(data)[:, :-1], labels[:, 1:])
{_END}""",
    ),
    "an end that is masked as padding": LoopProgram(
        "GS841",
        ("token 10 ends every sequence", "never learns to stop"),
        f"""
{_TOKENS}
        class Masked(Net):
            def forward(self, tokens, attention_mask):
                return super().forward(tokens)

        net = Masked()
{_LENGTHS}
        data = 1 + data[:, :8] % 9
        tokens = torch.where(torch.arange(8) < lengths[:, None] - 1, data, 10)
        mask = there.long()
        labels = tokens.masked_fill(tokens == 10, -100)  # broken
        labels = tokens.masked_fill(mask == 0, -100)  # mended
{_TRAIN}
            scores = net(tokens, attention_mask=mask)
            loss = loss_of(scores[:, :-1], labels[:, 1:])
{_END}""",
    ),
    "a softmax over the positions, which shows the next token": LoopProgram(
        "GS825",
        ("`log_softmax over dim 1` of [16, 8, 11]", "are in the last axis"),
        f"""
{_TOKENS}
        net = Net()
{_TRAIN}
            scores = net(data[:, :-1])
            scores = scores.log_softmax(1)  # broken # here
            scores = scores.log_softmax(2)  # mended
            loss = F.nll_loss(scores.flatten(0, 1), data[:, 1:].flatten())
{_END}""",
    ),
}
HEALTHY = {
    "a decoder that shifts its targets itself": f"""
        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
                self.gru = nn.GRU(16, 16, batch_first=True)

            def forward(self, state, targets):
                tokens = F.pad(targets[:, :-1], (1, 0))
                return self.head(self.gru(self.embedding(tokens), state)[0])

        net, source = Decoder(), torch.randn(1, 16, 16)
        data = torch.randint(1, 11, (16, 9)){_TRAIN}
            loss = F.cross_entropy(net(source, data).view(-1, 11), data.reshape(-1))
{_END}""",
    "a second loss for the token after the next": f"""
{_TOKENS}
        class Two(Net):
            def __init__(self):
                super().__init__()
                self.second = nn.Linear(11, 11)

            def forward(self, tokens):
                scores = super().forward(tokens)
                return scores, self.second(scores)

        net = Two(){_TRAIN}
            first, second = net(data[:, :-1])
            loss = loss_of(first, data[:, 1:]) + loss_of(second[:, :-1], data[:, 2:])
{_END}""",
    "an autoencoder of tokens": f"""
        class Autoencoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(11, 16)
                self.gru, self.code = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 4)
                self.out = nn.Linear(4, 88)

            def forward(self, tokens):
                states, last = self.gru(self.embedding(tokens))
                return self.out(self.code(last[-1])).view(-1, 8, 11)

        net, data = Autoencoder(), torch.randint(11, (16, 8)){_TRAIN}
            loss = F.cross_entropy(net(data).flatten(0, 1), data.flatten())
{_END}""",
    "a masked language model": f"""
{_TOKENS}
        net = Net(causal=False){_TRAIN}
            hidden = torch.rand(data.shape) < 0.4
            targets = data.masked_fill(~hidden, -100)
            loss = loss_of(net(data.masked_fill(hidden, 0)), targets)
{_END}""",
    "each token is classified alone, by itself": f"""
        net, data = nn.Embedding(11, 11), torch.randint(11, (16, 8)){_TRAIN}
            loss = F.cross_entropy(net(data).flatten(0, 1), data.flatten())
{_END}""",
    "little padding that counts": f"""
{_TOKENS}
        net = Net(causal=False)
        tokens = data[:, :8].clone()
        tokens[::4, -1] = 0
        classes = torch.where(tokens > 0, 1 + tokens % 2, 0){_TRAIN}
            loss = loss_of(net(tokens), classes)
{_END}""",
    "an end and padding that are no targets": f"""
{_TOKENS}
        net = Net()
        length = 3 + torch.arange(len(data))[:, None] % 3
        place = torch.arange(data.shape[1])
        data = torch.where(place < length, 2 + data % 9, (place == length).long())
        labels = data.masked_fill(data < 2, -100)
{_TRAIN}
            loss = loss_of(net(data)[:, :-1], labels[:, 1:])
{_END}""",
    "a prompt that is no target": f"""
{_TOKENS}
        class Masked(Net):
            def forward(self, tokens, attention_mask):
                return super().forward(tokens)

        net = Masked()
{_LENGTHS}
        labels = tokens.masked_fill(~there, -100)
        labels[:, :1] = -100{_TRAIN}
            scores = net(tokens, attention_mask=there.long())
            loss = loss_of(scores[:, :-1], labels[:, 1:])
{_END}""",
}
