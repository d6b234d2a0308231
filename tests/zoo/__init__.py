"""Public models of every kind, each held against a twin and against its own unobserved step."""
