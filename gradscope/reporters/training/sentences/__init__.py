"""What is said of a training run: header, findings, events, news, and steps in words."""
