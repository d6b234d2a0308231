"""The tables of a training run: step metrics, steps, and layers over steps."""
