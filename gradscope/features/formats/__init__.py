"""Files of features: a format is a file with ``suffix`` and ``write(features, path)``."""
