"""Runs Graphviz in a separate process that can be ended: DOT from stdin, a picture to stdout.

Run as ``python -m gradscope.diagrams.picture.process dot svg``: the engine, then the output format.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Lay out and draw one graph."""
    from pygraphviz import AGraph

    engine, form = sys.argv[1:3]
    graph = AGraph(string=sys.stdin.buffer.read().decode())
    sys.stdout.buffer.write(graph.draw(prog=engine, format=form))


if __name__ == "__main__":
    main()
