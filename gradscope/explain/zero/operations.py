"""What operations do to a gradient, by their nodes' names: where to add one that is not known."""

from __future__ import annotations

#: Of an operation and the input that a gradient goes to: what the gradient is multiplied by, as
#: the attribute that holds it and the input that it came from.
FACTORS: dict[str, dict[int, tuple[str, int]]] = {
    "Mul": {0: ("other", 1), 1: ("self", 0)},
    "Mm": {0: ("mat2", 1), 1: ("self", 0)},
    "Bmm": {0: ("mat2", 1), 1: ("self", 0)},
    "Mv": {0: ("vec", 1), 1: ("self", 0)},
    "Dot": {0: ("tensor", 1), 1: ("self", 0)},
    "Addmm": {1: ("mat2", 2), 2: ("mat1", 1)},
    "Addmv": {1: ("vec", 2), 2: ("mat", 1)},
    "Baddbmm": {1: ("batch2", 2), 2: ("batch1", 1)},
    "Addbmm": {1: ("batch2", 2), 2: ("batch1", 1)},
    "Addcmul": {1: ("tensor2", 2), 2: ("tensor1", 1)},
    "Linear": {0: ("weight", 1), 1: ("input", 0)},
    "Convolution": {0: ("weight", 1), 1: ("input", 0)},
    "NativeBatchNorm": {0: ("weight", 1)},
    "CudnnBatchNorm": {0: ("weight", 1)},
    "NativeLayerNorm": {0: ("weight", 1)},
    "NativeGroupNorm": {0: ("weight", 1)},
    "FusedRmsNorm": {0: ("weight", 1)},
    "PreluKernel": {0: ("weight", 1), 1: ("self", 0)},
    "WeightNormInterface": {0: ("g", 1)},
    "Div": {1: ("self", 0)},
    "Lerp": {1: ("weight", 2)},
}
#: Give the same output whatever comes in where all they normalise over is equal.
NORMS = frozenset(
    ["NativeBatchNorm", "CudnnBatchNorm", "NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm"]
)
#: Piecewise linear, and flat somewhere.
FLAT = frozenset(
    [
        "Relu",
        "Hardtanh",
        "Hardswish",
        "Threshold",
        "Clamp",
        "ClampMin",
        "ClampMax",
        "Softshrink",
        "Hardshrink",
        "LeakyRelu",
        "RreluWithNoise",
        "Gelu",
        "Silu",
        "Mish",
    ]
)
#: Of those, the ones that come close to flat without ever being so.
SOFT = frozenset(["Gelu", "Silu", "Mish"])
#: Smooth, and flat at their ends.
CURVED = frozenset(
    ["Sigmoid", "Tanh", "Hardsigmoid", "LogSigmoid", "Softplus", "Elu", "Celu", "Erf", "Atan"]
)
NORMALISED = frozenset(["Softmax", "LogSoftmax"])
#: Take some elements of what they are given and leave the others.
ROUTING = frozenset(
    [
        "Where",
        "MaskedFill",
        "MaskedSelect",
        "MaskedScatter",
        "Index",
        "IndexPut",
        "IndexAdd",
        "IndexSelect",
        "IndexFill",
        "IndexCopy",
        "Gather",
        "Scatter",
        "ScatterAdd",
        "Slice",
        "Select",
        "Narrow",
        "Split",
        "ConstantPadNd",
        "Tril",
        "Triu",
        "Sort",
        "Topk",
        "Max",
        "Min",
        "Amax",
        "Amin",
        "Maximum",
        "Minimum",
        "Fmax",
        "Fmin",
        "MaxPool2DWithIndices",
        "MaxPool3DWithIndices",
        "AdaptiveMaxPool2D",
        "Embedding",
        "EmbeddingBag",
        "NllLoss",
        "NllLoss2D",
        "NativeDropout",
        "FusedDropout",
        "Zero",
        "Fill",
        "CopySlices",
    ]
)
#: Put parts together, each of which gets the gradient of its own part.
JOINING = frozenset(
    ["Cat", "Stack", "IndexPut", "IndexAdd", "IndexCopy", "CopySlices", "Scatter", "ScatterAdd"]
)
VIEWS = frozenset(["Slice", "Select", "Narrow", "Split", "ConstantPadNd"])
#: Steps: their slope is zero wherever they have one.
STEPS = frozenset(["Round", "Floor", "Ceil", "Trunc", "Sign", "Sgn", "Heaviside"])
#: Operations through which zeros come out only where zeros went in, or where parts cancel.
ZERO_FROM_ZERO = frozenset(["Tanh", "Erf", "Gelu", "Silu", "Mish", "Atan"])
