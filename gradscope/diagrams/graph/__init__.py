"""The graph as every format sees it: one order, groups by module, folds, paths, names."""
