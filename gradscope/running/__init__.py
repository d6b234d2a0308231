"""One training step, run as the user would (plain) and watched (steps): state kept as it was found
(state), and the proof that watching changed nothing (verification)."""
