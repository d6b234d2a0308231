"""Records of a run: frozen, plain data that every view renders and every rule reads.

Standard library only, a file a subject. Add a field if a view or a rule needs one more fact:
``json`` writes and reads every field.
"""
