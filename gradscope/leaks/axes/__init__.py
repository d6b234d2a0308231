"""One file per axis, with ``judge(subject) -> AxisResult``; the file's name is the axis."""
