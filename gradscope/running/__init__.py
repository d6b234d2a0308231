"""One training step, run as the user would and watched: state kept as it was found (state), the
steps themselves (steps), and the proof that watching changed nothing (verification)."""
