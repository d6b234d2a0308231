"""The tables of a training run: vital signs, steps, and layers over steps."""
