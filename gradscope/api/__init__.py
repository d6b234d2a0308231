"""The Python entries: a config or a live model in, a record out. Nothing here prints.

One file for each record: ``inspecting`` makes a report, ``graphing`` an autograd graph.
"""

from gradscope.api.graphing import graph, graph_config
from gradscope.api.inspecting import inspect, inspect_config, layers

__all__ = ["graph", "graph_config", "inspect", "inspect_config", "layers"]
