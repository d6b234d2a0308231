"""Scripts that train are recognised by the code that runs, not by definitions alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradscope.config.python_files import PythonFile, does_something, parsed, trains

MODEL = "class Net(torch.nn.Module):\n    def forward(self, x): return x\n"
TRAINS = {
    "at the top": "for x in data:\n    net(x).sum().backward()\n",
    "under main": MODEL + "if __name__ == '__main__':\n    loss(Net()).backward()\n",
    "a scaler's": "scaler.scale(loss).backward()\n",
    "a function's": "def step(x):\n    x.backward()\ndef main():\n    step(1)\nmain()\n",
    "before it is defined": "def main():\n    step(1)\ndef step(x):\n    x.backward()\nmain()\n",
    "in a nested function": "def main():\n    def closure():\n        loss().backward()\n"
    "    go(closure)\nmain()\n",
    "given to a launcher": "def main(rank):\n    loss.backward()\nmp.spawn(main, nprocs=2)\n",
    "decorated": "@app.command()\ndef train():\n    loss.backward()\napp()\n",
    "a class's": "class Agent:\n    def learn(self):\n        loss.backward()\nAgent().learn()\n",
    "accelerate's": "accelerator.backward(loss)\n",
    "torch's function": "torch.autograd.backward(loss)\n",
    "a trainer's": "L.Trainer(max_epochs=1).fit(net)\n",
    "its own trainer": "SFTTrainer(model, args).train()\n",
    "a module's own fit": MODEL + "net = Net()\nnet.fit(x, y)\n",
    "in a try": "try:\n    loss.backward()\nfinally:\n    pass\n",
}
DOES_NOT = {
    "a model": MODEL,
    "a model with a smoke test": MODEL + "if __name__ == '__main__':\n    print(Net()(x))\n",
    "a function that nothing calls": MODEL + "def train(net, x):\n    net(x).sum().backward()\n",
    "a class that nothing makes": "class Agent:\n    def learn(self):\n        loss.backward()\n",
    "a module of Lightning's": "class Net(L.LightningModule):\n    def training_step(self, b):\n"
    "        return self(b)\n",
    "a name alone": "print(loss.backward)\nTrainer = None\n",
    "nothing": "",
}


def file(source: str, folder: Path) -> PythonFile:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    found = parsed(path)
    assert found is not None
    return found


@pytest.mark.parametrize("name", TRAINS)
def test_a_script_that_trains(name: str, tmp_path: Path) -> None:
    assert trains(file(TRAINS[name], tmp_path))


@pytest.mark.parametrize("name", DOES_NOT)
def test_one_that_does_not(name: str, tmp_path: Path) -> None:
    assert not trains(file(DOES_NOT[name], tmp_path))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", False),
        ('"""Text."""\nimport torch\nN = 3\ndef make(): ...\nclass A: ...\n', False),
        ("import pkg\npkg.main()\n", True),
        ("from pkg import main\nif __name__ == '__main__':\n    main()\n", True),
        ("for i in range(3):\n    print(i)\n", True),
    ],
)
def test_whether_it_does_anything(source: str, expected: bool, tmp_path: Path) -> None:
    assert does_something(file(source, tmp_path)) is expected
