"""A file for each axis, with ``judge(subject) -> AxisResult``; its name is the axis."""
