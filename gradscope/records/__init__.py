"""Records of a run: frozen, plain data for all formats and rules; one file per subject, standard
library only.

If a format or a rule needs another fact, add a field: JSON writes and reads every field.
"""
