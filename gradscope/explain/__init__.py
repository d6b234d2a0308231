"""Why something went wrong, in the user's terms. One file answers each question, the others serve:

- ``cuts``: why a parameter has no gradient (a second forward that follows its data);
- ``zeros``: why a gradient is exactly zero (``_zero_…``);
- ``births``: where a NaN or an infinity was born (``_births_…``);
- ``errors``: what an exception means (``_kinds`` lists the kinds, a file such as ``_inplace`` or
  ``_shapes`` tells each; ``_watching`` is the second run that it asks);
- ``activity`` and ``precision``: dead and saturated units, and what other dtypes would lose;
- ``frames``: whose code a line is, and how it is shown.
"""
