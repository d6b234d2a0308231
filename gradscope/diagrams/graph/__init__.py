"""The graph for all formats: order, groups by module, folds, paths, names."""
