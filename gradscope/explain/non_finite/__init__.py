"""The origin of a NaN or Inf: a second step, traced operation by operation."""
