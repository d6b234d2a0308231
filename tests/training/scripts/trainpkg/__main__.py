"""python -m trainpkg [--lr LR]"""
import argparse
import os
import sys

import torch

from . import __version__
from .engine import Config, Engine


def main() -> None:
    parser = argparse.ArgumentParser(prog="trainpkg")
    parser.add_argument("--lr", type=float, default=Config.lr)
    parser.add_argument("-m", "--message", default="")
    args = parser.parse_args()
    print(__version__, __name__, __package__, __spec__.name, os.path.basename(sys.argv[0]), sys.argv[1:])
    print(args, sys.path[0] == os.getcwd())
    engine = Engine(Config(lr=args.lr))
    engine.run()
    if "SAVE_WEIGHTS" in os.environ:
        torch.save(engine.mixer.state_dict(), os.environ["SAVE_WEIGHTS"])


if __name__ == "__main__":
    main()
