"""The graph as text for a terminal: a tree by module, and paths operation by operation."""
