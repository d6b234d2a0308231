"""Programs whose data, loss, initial weights or optimizer are wrong, each with its mended twin, and
programs that only look like one."""

from rules.loop_programs import LoopProgram

BROKEN = {
    "a function seeds a new generator for each batch": LoopProgram(
        "GS814", ("got the same input: `draw` seeds a new generator each time",), """
        def draw(count, seed=0):
            generator = torch.Generator().manual_seed(seed)  # broken # here
            generator = shared  # mended
            rows = torch.randint(len(x), (count,), generator=generator)
            return x[rows], y[rows]

        shared = torch.Generator().manual_seed(0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = draw(8)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "two loaders that shuffle apart": LoopProgram(
        "GS886", ("`inputs` and `labels` are shuffled separately",), """
        criterion = nn.CrossEntropyLoss()
        y = (x[:, 0] > 0).long()
        together = DataLoader(TensorDataset(x, y), 8, shuffle=True)  # mended
        first, second = DataLoader(x, 8, shuffle=True), DataLoader(y, 8, shuffle=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(3):
            for inputs, labels in together:  # mended
            for inputs, labels in zip(first, second):  # broken # here
                optimizer.zero_grad()
                scores = net(inputs)
                criterion(scores, labels).backward()
                optimizer.step()
        """),
    "a sigmoid before targets that are not between 0 and 1": LoopProgram(
        "GS510", ("the sigmoid at the model's end gives 0 to 1",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        values = 3 * x[:, :1] + x[:, 1:2]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            out = net(x[first : first + 8])
            out = out.sigmoid()  # broken # here
            F.mse_loss(out, values[first : first + 8]).backward()
            optimizer.step()
        """),
    "a module of the sigmoid in the model": LoopProgram(
        "GS510", ("the sigmoid at the model's end gives 0 to 1",), """
        last = nn.Sigmoid()  # broken # here
        last = nn.Identity()  # mended
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), last)
        values = 3 * x[:, :1] + x[:, 1:2]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            F.mse_loss(net(x[first : first + 8]), values[first : first + 8]).backward()
            optimizer.step()
        """),
    "a ReLU before negative targets, squared by hand": LoopProgram(
        "GS510", ("the ReLU at the model's end gives nothing below 0",), """
        head = nn.Linear(8, 1)
        nn.init.constant_(head.bias, 5.0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head)
        values = 3 * x[:, 0] + x[:, 1]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            out = net(x[first : first + 8]).squeeze(1)
            out = out.relu()  # broken # here
            loss = ((values[first : first + 8] - out) ** 2).mean()
            loss.backward()
            optimizer.step()
        """),
    "labels of -1 and 1 for a binary cross entropy": LoopProgram(
        "GS510", ("the labels of `binary_cross_entropy_with_logits`",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        signs = x[:, 0].sign()
        labels = signs  # broken
        labels = (signs > 0).float()  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            out = net(x[first : first + 8]).squeeze(1)
            F.binary_cross_entropy_with_logits(out, labels[first : first + 8]).backward()  # here
            optimizer.step()
        """),
    "all weights start at one number": LoopProgram(
        "GS511", ("all 8 rows of `0.weight` are equal", "`2.weight`"), """
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
        for layer in (net[0], net[2], net[4]):
            nn.init.constant_(layer.weight, 0.1)  # broken # here
            nn.init.xavier_uniform_(layer.weight)  # mended
            nn.init.zeros_(layer.bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "0.weight"),
    "each layer starts at a number of its own": LoopProgram(
        "GS511", ("all 8 rows of `0.weight` are equal",), """
        for i, parameter in enumerate(net.parameters()):
            parameter.data.add_(0.0)
            parameter.data.fill_(0.1 * (i + 1))  # broken
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "0.weight"),
    "all weights start at zero": LoopProgram(
        "GS511", ("`0.weight`, `2.weight`, `4.weight` are all zero in all",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        for layer in (net[0], net[2], net[4]):
            nn.init.zeros_(layer.weight)  # broken # here
            nn.init.xavier_uniform_(layer.weight)  # mended
            nn.init.zeros_(layer.bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "0.weight"),
    "a data set that ignores its index": LoopProgram(
        "GS833", ("all samples of a batch are the same in all",), """
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return len(x)

            def __getitem__(self, i):
                return x[0], y[i]  # broken
                return x[i], y[i]  # mended

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(2):
            for inputs, labels in DataLoader(Data(), 8):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()  # here
                optimizer.step()
        """, "net"),
    "a replay buffer that holds the environment's own state": LoopProgram(
        "GS884", ("all 128 items of `buffer.items` hold one array",), """
        import numpy as np

        class Walk:
            def __init__(self):
                self.place = np.zeros(4, dtype=np.float32)

            def step(self, i):
                self.place += x[i].numpy()
                return self.place  # broken # here
                return self.place.copy()  # mended

        class Buffer:
            def __init__(self):
                self.items = []

            def sample(self, first):
                before, labels, _, _ = zip(*self.items[first:first + 8])
                return torch.tensor(np.stack(before)), torch.stack(labels)

        buffer, walk = Buffer(), Walk()
        state = walk.step(0)
        for i in range(128):
            after = walk.step(i % 64)
            buffer.items.append((state, y[i % 64], 1.0, after))
            state = after
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(40):
            inputs, labels = buffer.sample(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "buffer.items"),
    "a replay buffer whose states are the next states": LoopProgram(
        "GS884", ("fields state and after of all 128 items of `memory` are one array",), """
        import collections

        Step = collections.namedtuple("Step", "state action reward after")

        class Walk:
            def reset(self):
                self.place = torch.randn(4)
                return self.place  # broken # here
                return self.place.clone()  # mended

            def step(self, action):
                self.place[action] += 0.1
                return self.place  # broken
                return self.place.clone()  # mended

        memory, walk = collections.deque(maxlen=500), Walk()
        for episode in range(16):
            state = walk.reset()
            for i in range(8):
                action = i % 2
                after = walk.step(action)
                memory.append(Step(state, action, float(after.sum()), after))
                state = after
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(40):
            chosen = [memory[(step + 16 * i) % 128] for i in range(8)]
            inputs = torch.stack([one.state for one in chosen])
            rewards = torch.tensor([one.reward for one in chosen])
            taken = torch.tensor([one.action for one in chosen])
            optimizer.zero_grad()
            F.mse_loss(net(inputs).gather(1, taken[:, None])[:, 0], rewards).backward()
            optimizer.step()
        """, "memory"),
    "classes numbered anew for the evaluation": LoopProgram(
        "GS885", ("`encoder.fit_transform(val_names)` fits `encoder` again",), """
        from sklearn.preprocessing import LabelEncoder

        train_names = ["ash" if one else "elm" for one in y]
        val_names = train_names[:16]
        encoder = LabelEncoder()
        train_y = torch.tensor(encoder.fit_transform(train_names))
        val_y = torch.tensor(encoder.fit_transform(val_names))  # broken # here
        val_y = torch.tensor(encoder.transform(val_names))  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            F.cross_entropy(net(x[first:first + 8]), train_y[first:first + 8]).backward()
            optimizer.step()
        with torch.no_grad():
            F.cross_entropy(net(x[:16]), val_y)
        """),
    "labels that are shuffled with another seed": LoopProgram(
        "GS886", ("`inputs` and `ratings` are shuffled separately",), """
        from sklearn.utils import shuffle

        def load():
            return x.numpy(), y.numpy()

        inputs, ratings = load()
        inputs = shuffle(inputs, random_state=1)
        ratings = shuffle(ratings, random_state=2)  # broken # here
        ratings = shuffle(ratings, random_state=1)  # mended
        data, labels = torch.from_numpy(inputs.copy()), torch.from_numpy(ratings.copy())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            F.cross_entropy(net(data[first:first + 8]), labels[first:first + 8]).backward()
            optimizer.step()
        """),
    "features are multiplied by zero": LoopProgram(
        "GS513", ("the output is the same for all samples",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.encode, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
                self.scale = 1 // 10  # broken
                self.scale = 1 / 10  # mended

            def forward(self, given):
                return self.head(self.encode(given).tanh() * self.scale + 1)

        net = Net()
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        net.encode.requires_grad_(False)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "net"),
    "the loss is maximised": LoopProgram(
        "GS834", ("the negative of a cross entropy",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), labels)  # here
            loss = -loss  # broken
            loss.backward()
            optimizer.step()
        """),
    "an optimizer that goes up": LoopProgram(
        "GS834", ("has maximize=True",), """
        up = True  # broken
        up = False  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, maximize=up)  # here
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """, "optimizer"),
    "an average of weights that assigns to a loop variable": LoopProgram(
        "GS835", ("`ema` never changes", "`net` began with"), """
        import copy
        ema = copy.deepcopy(net)  # here
        ema.requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            for mine, other in zip(ema.parameters(), net.parameters()):
                mine = 0.9 * mine + 0.1 * other.data  # broken
                mine.mul_(0.9).add_(other.data, alpha=0.1)  # mended
            if step % 8 == 7:
                with torch.no_grad():
                    net(x), ema(x)
        """, "ema"),
    "a target network that is never updated": LoopProgram(
        "GS835", ("`target_net` never changes", "23 steps call it"), """
        net = nn.Linear(4, 2)
        target_net = nn.Linear(4, 2)  # here
        target_net.load_state_dict(net.state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            with torch.no_grad():
                wanted = 0.1 * inputs[:, 0] + 0.9 * target_net(inputs).max(1).values
            optimizer.zero_grad()
            F.mse_loss(net(inputs).gather(1, labels[:, None]).squeeze(1), wanted).backward()
            optimizer.step()
            if step % 8 == 7:
                print(step)
                target_net.load_state_dict(net.state_dict())  # mended
        """, "target_net"),
    "a target network whose update never comes due": LoopProgram(
        "GS835", ("`target_net` never changes", "had no effect"), """
        import copy
        net = nn.Linear(4, 2)
        target_net = copy.deepcopy(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            with torch.no_grad():
                wanted = 0.1 * inputs[:, 0] + 0.9 * target_net(inputs).max(1).values
            optimizer.zero_grad()
            F.mse_loss(net(inputs).gather(1, labels[:, None]).squeeze(1), wanted).backward()
            optimizer.step()
            if step % 500 == 499:  # broken
            if step % 8 == 7:  # mended
                target_net.load_state_dict(net.state_dict())  # here
        """, "target_net"),
    "an average of weights in a function, without an effect": LoopProgram(
        "GS835", ("`ema` never changes", "with, after 30 steps"), """
        import copy

        def train():
            net = new()
            ema = copy.deepcopy(net)  # here
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(32):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
                for mine, other in zip(ema.parameters(), net.parameters()):
                    mine = 0.9 * mine + 0.1 * other.data  # broken
                    mine.data.mul_(0.9).add_(other.data, alpha=0.1)  # mended
                with torch.no_grad():
                    ema(x)

        train()
        """, "ema"),
    "an average of weights that is slower than the training is long": LoopProgram(
        "GS835", ("`ema` is still nearly the initial network", "after 40 steps"), """
        import copy
        net = new()
        ema = copy.deepcopy(net)  # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, other in zip(ema.parameters(), net.parameters()):
                    mine.lerp_(other, 1e-4)  # broken
                    mine.lerp_(other, 0.1)  # mended
                if step % 10 == 9:
                    ema(x)
        """, "ema"),
    "an average of weights without the running statistics": LoopProgram(
        "GS835", ("its buffers never change",), """
        import copy
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        net_ema = copy.deepcopy(net).eval()  # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, other in zip(net_ema.parameters(), net.parameters()):
                    mine.lerp_(other, 0.1)
                for mine, other in zip(net_ema.buffers(), net.buffers()):
                    wanted = other.clone()
                    mine.copy_(wanted)  # mended
            if step % 8 == 7:
                with torch.no_grad():
                    net_ema(x)
        """, "net_ema"),
    "an average in an object of its own": LoopProgram(
        "GS835", ("`module` never changes",), """
        import copy

        class ModelEMA:
            def __init__(self, model):
                self.module = copy.deepcopy(model).eval()  # here
                self.module.requires_grad_(False)

            def update(self, model):
                for name, value in self.module.state_dict().items():
                    value = 0.9 * value + 0.1 * model.state_dict()[name]  # broken
                    value.lerp_(model.state_dict()[name], 0.1)  # mended

        average = ModelEMA(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            average.update(net)
            if step % 8 == 7:
                with torch.no_grad():
                    average.module(x)
        """, "module"),
    "a lambda that gives the rate itself": LoopProgram(
        "GS612", ("`scheduler` (LambdaLR) multiplies the base rate 0.001 by at most 0.001",), """
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)  # broken
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # mended
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1e-3)  # broken # here
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)  # mended
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
            scheduler.step()
        """, "optimizer"),
    "class weights by frequency": LoopProgram(
        "GS836", ("the rarest class",), """
        y = (torch.arange(64) % 8 == 0).long()
        counts = torch.bincount(y).float()
        weight = counts / counts.sum()  # broken
        weight = counts.sum() / counts  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(32):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen], weight).backward()  # here
            optimizer.step()
        """),
    "a weight of the positives that is not inverse": LoopProgram(
        "GS836", ("the rarest class", "has weight 0.1429"), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        y = (torch.arange(64) % 8 == 0).float()
        criterion = nn.BCEWithLogitsLoss(pos_weight=y.sum() / (1 - y).sum())  # broken # here
        criterion = nn.BCEWithLogitsLoss(pos_weight=(1 - y).sum() / y.sum())  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(32):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            criterion(net(x[chosen]).squeeze(1), y[chosen]).backward()
            optimizer.step()
        """),
    "keys with a prefix": LoopProgram(
        "GS837", ("loaded nothing", "`module.0.weight`"), """
        state = {f"module.{key}": value for key, value in new().state_dict().items()}
        state = {key.removeprefix("module."): one for key, one in state.items()}  # mended
        net.load_state_dict(state, strict=False)  # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "a wrong derivative of one's own": LoopProgram(
        "GS508", ("`Swish.backward` is not the derivative",), """
        class Swish(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                gate = given.sigmoid()
                ctx.save_for_backward(given, gate)
                return given * gate

            @staticmethod
            def backward(ctx, gradient):
                given, gate = ctx.saved_tensors
                return gradient * gate * (1 - gate)  # broken # here
                return gradient * (gate + given * gate * (1 - gate))  # mended

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net[2](Swish.apply(net[0](inputs))), labels).backward()
            optimizer.step()
        """, "Swish"),
    "a backward that forgets the gradient that comes": LoopProgram(
        "GS508", ("`Square.backward` is not the derivative", "It ignores `grad_output`"), """
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                ctx.save_for_backward(given)
                return given ** 2

            @staticmethod
            def backward(ctx, gradient):
                (given,) = ctx.saved_tensors
                return 2 * given  # broken # here
                return 2 * given * gradient  # mended

        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net[2](Square.apply(net[0](inputs))), labels).backward()
            optimizer.step()
        """, "Square"),
    "numbers that are rounded to 0": LoopProgram(
        "GS820", ("are 0, in",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        values = torch.rand(64, 1)
        values = values.long().float()  # broken
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            F.mse_loss(net(x[first : first + 8]), values[first : first + 8]).backward()  # here
            optimizer.step()
        """),
    "weight decay of a half": LoopProgram(
        "GS611", ("weight_decay=0.5 outweighs the gradient",), """
        decay = 0.5  # broken
        decay = 1e-4  # mended
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=decay)  # here
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """, "optimizer"),
    "Muon with AdamW's learning rate": LoopProgram(
        "GS618", ("updates of `muon` (Muon)",), """
        wide = nn.Sequential(
            nn.Linear(4, 1024), nn.ReLU(), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
        )
        y = (x[:, 0] > 0).long()
        adjust = None  # broken
        adjust = "match_rms_adamw"  # mended
        muon = torch.optim.Muon([wide[2].weight], lr=1e-3, adjust_lr_fn=adjust)  # here
        others = [p for p in wide.parameters() if p is not wide[2].weight]
        adamw = torch.optim.AdamW(others, lr=1e-3)
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            muon.zero_grad()
            adamw.zero_grad()
            F.cross_entropy(wide(x[chosen]), y[chosen]).backward()
            muon.step()
            adamw.step()
        """, "muon"),
    "a resumed training without its optimizer": LoopProgram(
        "GS619", ("starts without a state",), """
        import io

        def train(model, optimizer, steps):
            for step in range(steps):
                inputs, labels = batch(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()

        first = torch.optim.AdamW(net.parameters(), lr=1e-3)
        train(net, first, 4)
        file = io.BytesIO()
        torch.save({"model": net.state_dict(), "optimizer": first.state_dict(), "step": 4}, file)
        del first
        file.seek(0)
        saved = torch.load(file)  # here
        net.load_state_dict(saved["model"])
        adamw = torch.optim.AdamW(net.parameters(), lr=1e-3)
        adamw.load_state_dict(saved["optimizer"])  # mended
        train(net, adamw, 12)
        """),
    "a learning rate of 1e-7": LoopProgram(
        "GS612", ("the learning rate 1e-07 is too low",), """
        rate = 1e-7  # broken # here
        rate = 1e-2  # mended
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """, "optimizer"),
    "a learning rate of 1e-7 that a loaded state leaves as it is": LoopProgram(
        "GS612", ("the learning rate 1e-07 is too low", "a step. The loss"), """
        rate = 1e-7  # broken # here
        rate = 1e-2  # mended
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        optimizer.load_state_dict(optimizer.state_dict())
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """, "optimizer"),
    "labels that do not belong to the inputs": LoopProgram(
        "GS613", ("always answering the classes' frequencies",), """
        x = torch.randn(512, 4)
        y = (x[:, 0] > 0).long()
        y = y[torch.randperm(512)]  # broken # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(96):
            chosen = torch.randperm(512)[:64]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """),
    "inputs and labels that are shuffled one after the other": LoopProgram(
        "GS613", ("`inputs` and `labels` are shuffled separately",), """
        import numpy

        def load():
            inputs = torch.randn(512, 4)
            labels = (inputs[:, 0] > 0).long().numpy()
            inputs = inputs.numpy()
            inputs = numpy.random.permutation(inputs)  # broken
            labels = numpy.random.permutation(labels)  # broken # here
            return torch.from_numpy(inputs[:448]), torch.from_numpy(labels[:448])

        numpy.random.seed(0)
        x, y = load()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(96):
            chosen = torch.randperm(448)[:64]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """),
    "boxes of other pictures": LoopProgram(
        "GS613", ("always answering the mean of the targets",), """
        x = torch.rand(512, 4)
        y = x[:, :2] * 0.8 + 0.1
        y = y[torch.randperm(512)]  # broken # here
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
        for step in range(96):
            chosen = torch.randperm(512)[:64]
            optimizer.zero_grad()
            F.smooth_l1_loss(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """),
    "a momentum that outlasts the training": LoopProgram(
        "GS882",
        ("the momentum of `optimizer` (SGD) is 0.999", "about 1,000 steps", "has 96 steps"),
        """
        y = (x[:, 0] > 0).long()
        momentum = 0.9
        momentum = 0.999  # broken
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum)  # here
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """, "optimizer"),
    "a backward of one's own that returns zeros": LoopProgram(
        "GS103", ("The backward of the autograd function `Sign` returned only zeros",), """
        class Sign(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                ctx.save_for_backward(given)
                return torch.where(given >= 0, 1.0, -1.0)

            @staticmethod
            def backward(ctx, gradient):
                (given,) = ctx.saved_tensors
                gradient = gradient.clone()
                gradient[given.abs() <= 1] = 0  # broken # here
                gradient[given.abs() > 1] = 0  # mended
                return gradient

        class Binary(nn.Linear):
            def forward(self, given):
                return F.linear(given, Sign.apply(self.weight), self.bias)

        net = nn.Sequential(Binary(4, 8), nn.Tanh(), Binary(8, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "class weights by frequency, in the loss's constructor": LoopProgram(
        "GS836", ("the rarest class",), """
        y = (torch.arange(64) % 8 == 0).long()
        counts = torch.bincount(y).float()
        criterion = nn.CrossEntropyLoss(weight=counts / counts.sum())  # broken # here
        criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts)  # mended
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(32):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            criterion(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        """),
    "labels in the order of the data beside shuffled inputs": LoopProgram(
        "GS613", ("a batch of `x` follows a permutation, and that of `y` does not",), """
        x = torch.randn(512, 4)
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(12):
            order = torch.randperm(512)
            for i in range(0, 512, 64):
                chosen = order[i:i + 64]
                inputs, labels = x[chosen], y[i:i + 64]  # broken # here
                inputs, labels = x[chosen], y[chosen]  # mended
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """),
    "labels of other nodes than the outputs": LoopProgram(
        "GS871", ("are a slice of", "of 64 rows", "in all"), """
        mask = torch.rand(64) < 0.5
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(12):
            chosen = y[mask]  # mended
            chosen = y[:int(mask.sum())]  # broken
            optimizer.zero_grad()
            F.cross_entropy(net(x)[mask], chosen).backward()  # here
            optimizer.step()
        right = (net(x)[~mask].argmax(1) == y[~mask]).float().mean()
        """),
    "targets of other rows, of which all are compared later": LoopProgram(
        "GS871", ("are a slice of", "of 64 rows", "in all"), """
        mask = torch.rand(64) < 0.5
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(12):
            outputs = net(x)
            chosen = y[mask]  # mended
            chosen = y[:int(mask.sum())]  # broken
            optimizer.zero_grad()
            F.cross_entropy(outputs[mask], chosen).backward()  # here
            optimizer.step()
        right = (net(x).argmax(1) == y).float().mean()
        """),
    "values of other rows, chosen by numbers": LoopProgram(
        "GS871", ("the rows 40, 41, 42,", "a slice of 20 of 64 rows"), """
        net = nn.Linear(4, 1)
        values, rows = x[:, :1].contiguous(), torch.arange(40, 60)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(12):
            target = values[40:60]  # mended
            target = values[:20]  # broken
            optimizer.zero_grad()
            F.mse_loss(net(x)[rows], target).backward()  # here
            optimizer.step()
        error = F.mse_loss(net(x)[rows], values[rows])
        """),
    "a data set with the label of its neighbour": LoopProgram(
        "GS871", ("`Rows` gives `self.labels[i - 1]` with `self.rows[i]`", "sample 0"), """
        class Rows(torch.utils.data.Dataset):
            def __init__(self):
                self.rows, self.labels = x, y

            def __len__(self):
                return len(self.rows)

            def __getitem__(self, i):
                row = self.rows[i]
                return row, self.labels[i]  # mended
                return row, self.labels[i - 1]  # broken # here

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for inputs, labels in DataLoader(Rows(), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "one batch at each step, given to the layers": LoopProgram(
        "GS814", ("all 12 calls", "a data loader of 8 batches restarts each time"), """
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = new()

            def training_step(self, batch):
                return F.cross_entropy(self.net(batch[0]), batch[1])

        model = Whole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        batches = iter(DataLoader(TensorDataset(x, y), batch_size=5))  # mended
        for step in range(12):
            given = next(iter(loader))  # broken # here
            given = next(batches)  # mended
            optimizer.zero_grad()
            model.training_step(given).backward()
            optimizer.step()
        """),
    "one batch before the loop": LoopProgram(
        "GS814", ("all 12 steps train on one batch of the 8", "is evaluated on other data"), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
        inputs, labels = next(iter(loader))  # broken # here
        for step in range(12):
            inputs, labels = next(iter(loader))  # mended
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        print(F.cross_entropy(net(x), y).item())
        """),
    "one batch before the loop, without other data": LoopProgram(
        "GS814", ("all 12 steps train on one batch of the 8 of the data loader",), """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        batches = iter(loader)  # mended
        inputs, labels = next(iter(loader))  # broken # here
        for step in range(12):
            if step == 8:  # mended
                break  # mended
            inputs, labels = next(batches)  # mended
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """),
    "prices in dollars": LoopProgram(
        "GS614", ("are not standardized",), """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        price = 300_000 + 50_000 * x[:, :1]  # here
        price = (price - price.mean()) / price.std()  # mended
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(96):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.mse_loss(net(x[chosen]), price[chosen]).backward()
            optimizer.step()
        """),
}  # fmt: skip

HEALTHY = {
    "two loaders with batch samplers of the script's own": """
        from torch.utils.data import RandomSampler

        class Batches:
            def __init__(self):
                self.sampler = RandomSampler(x)

            def __iter__(self):
                for first in range(0, 64, 8):
                    yield (number for number in range(first, first + 8))

            def __len__(self):
                return 8

        first, second = (DataLoader(x, batch_sampler=Batches()) for _ in range(2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(3):
            for inputs, others in zip(first, second):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), (others[:, 0] > 0).long()).backward()
                optimizer.step()
        """,
    "noise of another loader": """
        denoiser = nn.Linear(4, 4)
        samples, noises = DataLoader(x, 8, shuffle=True), DataLoader(x.flip(0), 8, shuffle=True)
        optimizer = torch.optim.SGD(denoiser.parameters(), lr=0.1)
        for epoch in range(3):
            for clean, noise in zip(samples, noises):
                noisy = clean + 0.5 * noise
                optimizer.zero_grad()
                F.mse_loss(denoiser(noisy), noise).backward()
                optimizer.step()
        """,
    "two shuffling loaders of two domains": """
        first, second = DataLoader(x, 8, shuffle=True), DataLoader(x + 1, 8, shuffle=True)
        critic = nn.Linear(2, 1)
        optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.01)
        for epoch in range(3):
            for source, target in zip(first, second):
                loss = critic(net(source)).mean() - critic(net(target)).mean()
                optimizer.zero_grad()
                (loss + F.mse_loss(net(source).mean(0), net(target).mean(0))).backward()
                optimizer.step()
        """,
    "two loaders that shuffle alike": """
        criterion = nn.CrossEntropyLoss()
        first = DataLoader(x, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
        second = DataLoader((x[:, 0] > 0).long(), 8, shuffle=True,
                            generator=torch.Generator().manual_seed(1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(3):
            for inputs, labels in zip(first, second):
                optimizer.zero_grad()
                criterion(net(inputs), labels).backward()
                optimizer.step()
        """,
    "a replay buffer of tuples that share what nobody changes": """
        import numpy as np

        goal = np.ones(4, dtype=np.float32)
        counts = np.zeros(4)
        counts += 1
        memory = [(x[i].numpy(), 1.0, y[i], goal, goal) for i in range(64)]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(40):
            states, _, labels, _, _ = zip(*memory[step % 8 * 8:step % 8 * 8 + 8])
            optimizer.zero_grad()
            F.cross_entropy(net(torch.tensor(np.stack(states))), torch.stack(labels)).backward()
            optimizer.step()
        """,
    "replay buffers that hold a mask, and one array twice, that are only written when new": """
        import numpy as np

        class Arms:
            def __init__(self):
                self.mask = np.zeros(4)
                self.mask[3] = 1
                self.state = torch.ones(1)

            def seen(self, place):
                self.context = np.zeros(4, dtype=np.float32)
                self.context[place] = 1
                return self.context

        class Moments:
            def __init__(self):
                self.state = {}

            def add(self, name, number):
                self.state[name] = number

        arms, moments, memory, rewards = Arms(), Moments(), [], []
        moments.add("first", 1.0)
        for i in range(64):
            context = arms.seen(i % 4)
            memory.append((context, i % 2, 1.0, context, arms.mask))
            rewards.append((arms.state, i % 2, 1.0, arms.state))
        states = torch.tensor(np.stack([one[0] for one in memory]))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(40):
            first = step % 8 * 8
            inputs, labels = x[first:first + 8] + states[first:first + 8], y[first:first + 8]
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "objects of the script whose methods raise": """
        import collections

        class Unbound:
            @property
            def __class__(self):
                raise RuntimeError

            @property
            def __dict__(self):
                raise RuntimeError

        class Closed(list):
            def __len__(self):
                raise RuntimeError

            def __iter__(self):
                raise RuntimeError

        class Pair(tuple):
            def __len__(self):
                raise RuntimeError

            def __iter__(self):
                raise RuntimeError

        class Ring(collections.deque):
            def __len__(self):
                raise RuntimeError

        unbound, closed, ring = Unbound(), Closed([1] * 32), Ring([1] * 32)
        proxies = [Unbound() for _ in range(32)]
        fields = [(Unbound(), 1, 1.0, x[0]) for _ in range(32)]
        pairs = [Pair((x[0], x[0], 1.0, 1)) for _ in range(32)]
        mixed = [1] * 32 + [()]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(40):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "hidden states that each step makes anew, and whose gradient is kept": """
        del net
        weight = (0.3 * torch.randn(12, 8)).requires_grad_()
        last = (0.3 * torch.randn(8, 2)).requires_grad_()
        for step in range(60):
            inputs, labels = batch(step)
            hidden = torch.zeros(8, 8, requires_grad=True)
            cell = torch.zeros(8, 8, requires_grad=True)
            both = torch.cat([inputs, hidden], 1)
            loss = F.cross_entropy((torch.tanh(both @ weight) + cell) @ last, labels)
            loss.backward()
            with torch.no_grad():
                for one in (weight, last):
                    one -= 0.1 * one.grad
                    one.grad = None
        """,
    "an entropy by a fresh sample beside an action that is scored by hand": """
        from torch.distributions import Categorical

        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for step in range(60):
            inputs, labels = batch(step)
            with torch.no_grad():
                action = Categorical(logits=net(inputs)).sample()
            reward = (action == labels).float()
            policy = Categorical(logits=net(inputs))
            entropy = -policy.log_prob(policy.sample()).mean()
            scores = net(inputs).log_softmax(1)[range(8), action]
            loss = -(scores * (reward - 0.5)).mean() - 0.01 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    "encoders that are fitted to one column each": """
        from sklearn.preprocessing import LabelEncoder, StandardScaler

        encoder = LabelEncoder()
        colour, size = encoder.fit_transform(["a", "b"] * 32), encoder.fit_transform([1, 2] * 32)
        train_scaler, test_scaler = StandardScaler(), StandardScaler()
        train_scaler.fit_transform(x[:32].numpy()), test_scaler.fit_transform(x[32:].numpy())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "arrays of two domains that are shuffled separately": """
        from sklearn.utils import shuffle

        def load():
            return x.numpy(), y.numpy(), x.numpy() + 1

        inputs, labels, others = load()
        inputs, labels = shuffle(inputs, labels, random_state=1)
        others = shuffle(others, random_state=2)
        data, wanted = torch.from_numpy(inputs.copy()), torch.from_numpy(labels.copy())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            first = step % 8 * 8
            optimizer.zero_grad()
            F.cross_entropy(net(data[first:first + 8]), wanted[first:first + 8]).backward()
            optimizer.step()
        """,
    "a slow average of weights in a function": """
        import copy

        def train():
            y = (x[:, 0] > 0).long()
            net = new()
            ema = copy.deepcopy(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(96):
                chosen = torch.arange(step, step + 16) % 64
                optimizer.zero_grad()
                F.cross_entropy(net(x[chosen]), y[chosen]).backward()
                optimizer.step()
                with torch.no_grad():
                    for mine, other in zip(ema.state_dict().values(), net.state_dict().values()):
                        mine.mul_(0.99).add_(other, alpha=0.01)
                    if step % 8 == 7:
                        ema(x)

        train()
        """,
    "all training rows in each step, by their index": """
        train = torch.arange(48)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            optimizer.zero_grad()
            F.cross_entropy(net(x[train]), y[train]).backward()
            optimizer.step()
            if step % 8 == 7:
                with torch.no_grad():
                    net(x[48:])
        """,
    "lists of files that are shuffled one after the other": """
        import random

        y = (x[:, 0] > 0).long()
        train, held = list(range(48)), list(range(48, 64))
        random.shuffle(train)
        random.shuffle(held)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(96):
            chosen = torch.tensor(train[step % 6 * 8 :][:8])
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            net(x[held])
        """,
    "a batch sampler that gives tensors": """
        loader = DataLoader(TensorDataset(x, y), batch_sampler=list(torch.arange(64).view(8, 8)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(2):
            for inputs, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "a stream, and positions as the only inputs of the layers": """
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.randint(8, (4,))

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.places = nn.Parameter(torch.randn(8, 4)), nn.Embedding(4, 4)
                self.head = nn.Linear(4, 2)

        model = Whole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, tokens in zip(range(12), DataLoader(Stream(), batch_size=16)):
            given = F.embedding(tokens, model.words) + model.places(torch.arange(4))
            optimizer.zero_grad()
            F.cross_entropy(model.head(given.mean(1)), tokens[:, 0] % 2).backward()
            optimizer.step()
        """,
    "a loader with one batch": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=64):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                optimizer.step()
        """,
    "positions, the only inputs of the layers": """
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.places = nn.Parameter(torch.randn(8, 4)), nn.Embedding(4, 4)
                self.head = nn.Linear(4, 2)

        model = Whole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            tokens = torch.randint(8, (16, 4))
            given = F.embedding(tokens, model.words) + model.places(torch.arange(4))
            optimizer.zero_grad()
            F.cross_entropy(model.head(given.mean(1)), tokens[:, 0] % 2).backward()
            optimizer.step()
        """,
    "rows that are packed at the front": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            found, known = torch.randperm(64)[:20].sort().values, torch.zeros(64, dtype=torch.long)
            known[:20] = y[found]
            optimizer.zero_grad()
            F.cross_entropy(net(x)[found], known[:20]).backward()
            optimizer.step()
        """,
    "rows that are packed at the front, once": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        found, known = torch.arange(30, 50), torch.zeros(64, dtype=torch.long)
        known[:20] = y[found]
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x)[found], known[:20]).backward()
            optimizer.step()
        """,
    "targets that are stored by split": """
        mask = torch.rand(64) < 0.5
        by_split = torch.cat([y[mask], y[~mask]])
        count = int(mask.sum())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x)[mask], by_split[:count]).backward()
            optimizer.step()
        right = (net(x)[~mask].argmax(1) == by_split[count:]).float().mean()
        """,
    "targets that are stored by split, and compared in that order": """
        mask = torch.rand(64) < 0.5
        order = torch.cat([mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]])
        by_split = torch.cat([y[mask], y[~mask]])
        count = int(mask.sum())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x)[mask], by_split[:count]).backward()
            optimizer.step()
        right = (net(x)[order].argmax(1) == by_split).float().mean()
        """,
    "targets in the order of a permutation": """
        order = torch.randperm(64)
        sorted_by_it = y[order]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x)[order[:40]], sorted_by_it[:40]).backward()
            optimizer.step()
        """,
    "the action before each state": """
        class Steps(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, i):
                return self.states[i], self.actions[i - 1], self.labels[i]

        data = Steps()
        data.states, data.actions, data.labels = x[:, :3], x[:, 3:], y
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for state, action, labels in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.cat([state, action], 1)), labels).backward()
            optimizer.step()
        """,
    "a label of the sample before, where there is one": """
        class Steps(torch.utils.data.Dataset):
            def __len__(self):
                return 63

            def __getitem__(self, i):
                i = i + 1
                return x[i], self.labels[i - 1]

        data = Steps()
        data.labels = y
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for inputs, labels in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "all data, after a look at one batch": """
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        print(next(iter(loader))[0].shape)
        for epoch in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        """,
    "fine-tuning a checkpoint at another rate": """
        import io

        first = torch.optim.AdamW(net.parameters(), lr=1e-3)
        inputs, labels = batch(0)
        F.cross_entropy(net(inputs), labels).backward()
        first.step()
        file = io.BytesIO()
        torch.save({"model": net.state_dict(), "optimizer": first.state_dict()}, file)
        del first
        file.seek(0)
        net.load_state_dict(torch.load(file)["model"])
        adamw = torch.optim.AdamW(net.parameters(), lr=2e-4)
        for step in range(12):
            inputs, labels = batch(step)
            adamw.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            adamw.step()
    """,
    "soft labels of a GAN, and targets at the ends of the range": """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inputs, labels = batch(step)
            soft = 0.7 + 0.5 * torch.rand(8)
            soft = torch.where(labels > 0, soft, torch.zeros(8))
            optimizer.zero_grad()
            out = net(inputs).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(out, soft)
            loss = loss + F.mse_loss(out.sigmoid(), labels.float())
            loss.backward()
            optimizer.step()
        """,
    "zeros where they belong: an adapter, a residual branch, a head": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
                self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
                nn.init.zeros_(self.up.weight)
                nn.init.zeros_(self.head.weight)

            def forward(self, given):
                given = self.first(given).tanh()
                return self.head(given + self.up(self.down(given)))

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        """,
    "backwards that are another on purpose": """
        class Sign(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                return given.sign()

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        class Reverse(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, factor):
                ctx.factor = factor
                return given.view_as(given)

            @staticmethod
            def backward(ctx, gradient):
                return -ctx.factor * gradient, None

        class Quantize(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, scale):
                ctx.save_for_backward(given, scale)
                return (given / scale).round() * scale

            @staticmethod
            def backward(ctx, gradient):
                given, scale = ctx.saved_tensors
                rest = (given / scale).round() - given / scale
                return gradient, (gradient * rest).sum()

        scale = nn.Parameter(torch.tensor(0.3))
        optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            hidden = Quantize.apply(Sign.apply(net[0](inputs)) + net[0](inputs), scale)
            loss = F.cross_entropy(net[2](hidden), labels)
            loss = loss + 0.01 * Reverse.apply(hidden, 0.5).square().mean()
            loss.backward()
            optimizer.step()
        """,
    "a random target, a reference, an old model": """
        import copy
        target, reference = new(), copy.deepcopy(net)
        target.requires_grad_(False)
        reference.requires_grad_(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = batch(step)
            with torch.no_grad():
                aim, before = target(inputs), reference(inputs)
            optimizer.zero_grad()
            out = net(inputs)
            (F.mse_loss(out, aim) + 0.1 * F.mse_loss(out, before)).backward()
            optimizer.step()
        """,
    "a load of the backbone alone, a weight for what is rare": """
        state = {k: v for k, v in new().state_dict().items() if k.startswith("0.")}
        net.load_state_dict(state, strict=False)
        y = (torch.arange(64) % 8 == 0).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(32):
            chosen = torch.randperm(64)[:16]
            optimizer.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen], torch.tensor([1.0, 7.0])).backward()
            optimizer.step()
        """,
    "a graph of nodes without features": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 2)

            def forward(self, nodes, edges):
                hidden = self.first(nodes)
                out = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])
                return self.last(out.tanh())

        net, edges, nodes = Net(), torch.randint(64, (2, 200)), torch.ones(64, 1)
        y = (torch.bincount(edges[1], minlength=64) > 3).long()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            optimizer.zero_grad()
            F.cross_entropy(net(nodes, edges), y).backward()
            optimizer.step()
        """,
    "values of nothing at the edge, beside an equation": """
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(12):
            inside = torch.rand(16, 1, requires_grad=True)
            optimizer.zero_grad()
            (slope,) = torch.autograd.grad(net(inside).sum(), inside, create_graph=True)
            edge = F.mse_loss(net(torch.rand(8, 1).round()), torch.zeros(8, 1))
            (edge + (slope - 1).square().mean()).backward()
            optimizer.step()
        """,
    "a teacher that is loaded before the loop, an action that the cross entropy scores": """
        import copy
        old = copy.deepcopy(net)
        old.load_state_dict(net.state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            inputs, labels = torch.randn(16, 4), torch.arange(16) % 2
            policy = torch.distributions.Categorical(logits=net(inputs))
            action = policy.sample()
            reward = (action == (inputs[:, 0] > 0)).float() - 0.5
            entropy = -policy.log_prob(policy.sample()).mean()
            cost = F.cross_entropy(policy.logits, action, reduction="none")
            optimizer.zero_grad()
            ((cost * reward).mean() - 0.01 * entropy).backward()
            optimizer.step()
        """,
}
