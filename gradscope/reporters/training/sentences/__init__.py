"""Text on a training run: header, findings, events, news, and steps in words."""
