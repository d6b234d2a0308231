"""Why gradients are missing: broken programs with the answers that they should get."""
