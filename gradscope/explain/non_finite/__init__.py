"""Where a NaN or an infinity comes from: a second step, watched operation by operation."""
