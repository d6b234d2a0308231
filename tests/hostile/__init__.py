"""Input that somebody made to harm, and models that misbehave."""
