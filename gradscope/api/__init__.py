"""The Python entries: a config or a live model in, a record out. Nothing here prints.

``inspecting`` makes a report, or only its findings, ``graphing`` an autograd graph, ``attributing``
attribution maps, ``answering`` answers, ``diffing`` a comparison, ``experimenting`` short trainings
of a script, ``leaking`` verdicts on leaks, ``coord_checking`` slopes over a model's width,
``features`` features; ``reading`` reads what was saved or recorded. Every entry that runs a
model begins with ``opened``. Its ``Options`` has the keywords that several entries take.
"""
