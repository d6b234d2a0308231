"""Missing gradients: broken programs with the answers that they should get."""
