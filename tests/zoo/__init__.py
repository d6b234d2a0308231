"""Public models of every kind, each compared with a twin and against its own unobserved step."""
