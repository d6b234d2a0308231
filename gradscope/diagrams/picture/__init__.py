"""Pictures: boxes and arrows from a graph, written as DOT and laid out by Graphviz."""
