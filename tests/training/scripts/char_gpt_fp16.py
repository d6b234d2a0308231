# Half precision with a gradient scaler. The scale starts so high that the first steps overflow
# and are skipped, as at the beginning of most real runs.
import os
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(3)
VOCAB, CTX, DIM, HEADS = 27, 16, 32, 4


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(CTX, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.tok(x) + self.pos[: x.shape[1]]
        return self.head(self.layers(h, mask=mask, is_causal=True))


names = "emma olivia ava isabella sophia charlotte mia amelia harper evelyn abigail emily ella".split()
stream = torch.tensor([0 if c == " " else ord(c) - 96 for c in " ".join(names * 12)])


def batches(n, size=8):
    for _ in range(n):
        start = torch.randint(0, len(stream) - CTX - 1, (size,))
        yield (torch.stack([stream[s : s + CTX] for s in start]),
               torch.stack([stream[s + 1 : s + CTX + 1] for s in start]))


model = Decoder()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=16)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5)

skipped = 0
for i, (x, y) in enumerate(batches(16)):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scale = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    if scaler.get_scale() < scale:
        skipped += 1
    else:
        sched.step()
    print(i, "loss", loss.item(), "norm", norm.item(), "scale", scaler.get_scale())

print("skipped", skipped)
if "SAVE_WEIGHTS" in os.environ:
    torch.save(model.state_dict(), os.environ["SAVE_WEIGHTS"])
