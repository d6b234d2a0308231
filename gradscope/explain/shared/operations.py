"""One table of the properties of PyTorch's operations, for functions, operators and nodes.

An operation has three names: the function that Python calls (``softmax``, ``__truediv__``), ATen's
operator (``_softmax``, ``div``) and the node of the graph (``SoftmaxBackward0``). A new operation
is one entry, by ATen's name without the underscores around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any

from torch.autograd.graph import Node


class Trait(Flag):
    """Properties of an operation."""

    # Of its arguments and its result
    ASKS = auto()  # reads or marks a tensor, and makes nothing that an explanation could name
    CARRIES_NOTHING = auto()  # no argument's data end up in the result
    FIRST_ONLY = auto()  # only the first argument's do
    OTHERS_ONLY = auto()  # only those of the others do
    DETACHES = auto()  # the result has the data and no gradient path to it
    LEAVES_TORCH = auto()  # gives Python or NumPy what a tensor held
    ENTERS_TORCH = auto()  # makes a tensor of Python's or NumPy's data
    OVERWRITES = auto()  # replaces all that the tensor that it writes to held
    UNINITIALISED = auto()  # makes memory that nothing was written to
    COMPARES = auto()  # gives indices that it found by comparing
    RUNNING = auto()  # writes running statistics although its schema does not say so
    # Of the shape of its result
    CHANNELS = auto()  # channels are on the second axis
    FEATURES = auto()  # features are on the last axis
    RESHAPES = auto()
    # Of its arithmetic
    PRODUCTS = auto()  # sums of products
    MATMUL = auto()  # of those, the product of its two sides and nothing else
    TOTAL = auto()  # a sum or a mean
    SPREAD = auto()  # a variance or a standard deviation
    LENGTH = auto()  # a norm
    SQUARES = auto()  # of differences
    SOFTMAX = auto()
    NORMALISES = auto()  # gives the same whatever comes in, where all that it normalises is equal
    REDUCES = auto()  # makes one number of a batch of losses
    LOSS = auto()  # takes an output and a target
    CLASSES = auto()  # of those, the target may be class ids
    LOGITS = auto()  # of those and of what leads to them, takes logits as they are
    # Of its slope
    FLAT = auto()  # piecewise linear, and flat somewhere
    SOFT = auto()  # of those, comes close to flat without ever being so
    CURVED = auto()  # smooth, and flat at its ends
    HINGE = auto()  # what margins are made of
    ZERO_AT_ZERO = auto()  # of the flat and curved, zero only where it was given zero
    STEP = auto()  # zero wherever there is a slope
    DISTANCE = auto()  # the distance to the target
    CERTAIN = auto()  # flat where a probability is 0 or 1
    CHOOSES = auto()  # takes some elements of what it is given and leaves the others
    SLICES = auto()  # of those, a part that is known beforehand
    JOINS = auto()  # puts parts together, each of which gets the gradient of its own part
    SINGULAR = auto()  # its derivative is NaN or Inf at some inputs with a finite result


@dataclass(frozen=True, slots=True)
class Operation:
    """Entry of an operation; an operation outside the table has only its name.

    Attributes:
        name: ATen's, without underscores around it.
        title: the users' name for it, if that differs.
        factors: for each input that gets a gradient, the factor of that gradient: the node's
            attribute that holds it, and its source among the inputs.
    """

    name: str
    traits: Trait
    title: str | None = None
    factors: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    def has(self, *traits: Trait) -> bool:
        """Return True if the operation has any of these traits."""
        return any(trait in self.traits for trait in traits)


T = Trait
_TABLE: dict[str, Operation] = {}


def _enter(names: str, traits: Trait, title: str | None = None, **factors: str) -> None:
    """Put operations into the table; ``to_0="other 1"`` is a factor."""
    read = {int(to.removeprefix("to_")): entry.split() for to, entry in factors.items()}
    pairs = {to: (kept, int(edge)) for to, (kept, edge) in read.items()}
    for name in names.split():
        if name in _TABLE:
            raise ValueError(f"{name} is in the table already")
        _TABLE[name] = Operation(name, traits, title, pairs)


# Functions without an operator, and what moves data
_enter("size dim numel stride is_complex is_floating_point is_contiguous data_ptr", T.ASKS)
_enter("untyped_storage element_size register_hook retain_grad _set_grad_enabled", T.ASKS)
_enter("__len__ __bool__ __hash__ __repr__ __format__ __str__", T.ASKS)
_enter("requires_grad_ .requires_grad .grad ._grad .grad_fn .is_leaf", T.CARRIES_NOTHING)
_enter("._base .shape .dtype .device share_memory_ backward", T.CARRIES_NOTHING)
_enter("register_post_accumulate_grad_hook new_zeros new_ones", T.CARRIES_NOTHING)
_enter("zeros_like ones_like rand_like randn_like randint_like", T.CARRIES_NOTHING)
_enter("empty_like new_empty new_empty_strided", T.CARRIES_NOTHING | T.UNINITIALISED)
_enter("empty empty_strided empty_permuted resize resize_as_sparse", T.UNINITIALISED)
_enter("resize_as", T.UNINITIALISED | T.FIRST_ONLY)
_enter("expand_as view_as reshape_as type_as to", T.FIRST_ONLY)
_enter("full_like", T.OTHERS_ONLY)
_enter("full", T.ENTERS_TORCH)
_enter("new_full", T.OTHERS_ONLY | T.ENTERS_TORCH)
_enter("new_tensor", T.OTHERS_ONLY | T.ENTERS_TORCH | T.DETACHES)
_enter("tensor as_tensor asarray scalar_tensor from_numpy", T.ENTERS_TORCH | T.DETACHES)
_enter("item tolist numpy __array__ __float__", T.LEAVES_TORCH | T.DETACHES)
_enter("__int__ __index__ __complex__", T.LEAVES_TORCH | T.DETACHES)
_enter("detach grad", T.DETACHES)
_enter(".data", T.DETACHES | T.OVERWRITES)
_enter("copy normal log_normal uniform bernoulli random exponential cauchy geometric", T.OVERWRITES)
_enter("set trunc_normal constant ones zeros orthogonal", T.OVERWRITES)
_enter("xavier_uniform xavier_normal kaiming_uniform kaiming_normal", T.OVERWRITES)
_enter("fill zero", T.OVERWRITES | T.CHOOSES)
_enter("to_copy", T(0), "the cast")
_enter("view unsafe_view reshape flatten", T.RESHAPES)

# Sums and products
_enter("add", T.REDUCES, "the sum")
_enter("sub", T(0), "the difference")
_enter("mul", T(0), "the product", to_0="other 1", to_1="self 0")
_enter("addcmul", T(0), "the product", to_1="tensor2 2", to_2="tensor1 1")
_enter("div", T.REDUCES | T.SINGULAR, to_1="self 0")
_enter("lerp", T(0), to_1="weight 2")
_M = T.PRODUCTS | T.MATMUL
_enter("mm bmm", _M | T.FEATURES, "the matrix product", to_0="mat2 1", to_1="self 0")
_enter("mv", _M, "the matrix product", to_0="vec 1", to_1="self 0")
_enter("dot", _M, "the dot product", to_0="tensor 1", to_1="self 0")
_enter("matmul", T.MATMUL)
_enter("addmm", _M | T.FEATURES, "the linear layer", to_1="mat2 2", to_2="mat1 1")
_enter("linear", _M | T.FEATURES, "the linear layer", to_0="weight 1", to_1="input 0")
_enter("baddbmm", _M | T.FEATURES, "the matrix product", to_1="batch2 2", to_2="batch1 1")
_enter("addbmm", T.PRODUCTS, to_1="batch2 2", to_2="batch1 1")
_enter("addmv", T.PRODUCTS, to_1="vec 2", to_2="mat 1")
_C = T.PRODUCTS | T.CHANNELS
_enter("convolution", _C, "the convolution", to_0="weight 1", to_1="input 0")
_enter("vdot mkldnn_linear mkldnn_convolution thnn_conv2d", T.PRODUCTS)
_enter("weight_norm_interface", T(0), to_0="g 1")
_enter("sum mean", T.TOTAL | T.REDUCES)
_enter("cumsum nansum", T.TOTAL)
_enter("std var std_mean var_mean", T.SPREAD)
_enter("linalg_vector_norm norm", T.LENGTH | T.DISTANCE | T.SINGULAR)
_enter("abs", T.DISTANCE)
_enter("pow cdist", T.DISTANCE | T.SINGULAR)

# Normalisations
_N = T.NORMALISES | T.CHANNELS
_enter("native_batch_norm cudnn_batch_norm", _N | T.RUNNING, "the batch norm", to_0="weight 1")
_enter("miopen_batch_norm", _N | T.RUNNING)
_enter("native_batch_norm_legit batch_norm_with_update", _N)
_enter("native_batch_norm_legit_no_training batch_norm_no_update", T.NORMALISES)
_enter("native_layer_norm", T.NORMALISES | T.FEATURES, "the layer norm", to_0="weight 1")
_enter("native_group_norm", _N, "the group norm", to_0="weight 1")
_enter("fused_rms_norm", T.NORMALISES, to_0="weight 1")

# Nonlinearities
_enter("relu clamp clamp_min", T.FLAT | T.HINGE)
_enter("hardtanh", T.FLAT, "`hardtanh` (or `relu6`)")
_enter("hardswish threshold clamp_max softshrink hardshrink leaky_relu rrelu_with_noise", T.FLAT)
_enter("gelu silu mish", T.FLAT | T.SOFT | T.ZERO_AT_ZERO)
_enter("prelu_kernel", T(0), "`prelu`", to_0="weight 1", to_1="self 0")
_enter("sigmoid hardsigmoid log_sigmoid softplus elu celu", T.CURVED)
_enter("tanh erf atan", T.CURVED | T.ZERO_AT_ZERO)
_enter("round floor ceil trunc sign sgn heaviside", T.STEP)
_enter("softmax safe_softmax", T.SOFTMAX)
_enter("log_softmax", T.SOFTMAX | T.LOGITS)

# With slopes that are NaN or Inf everywhere
_enter("sqrt rsqrt reciprocal log log2 log10 log1p xlogy logit erfinv atan2 hypot", T.SINGULAR)
_enter("acos asin acosh atanh float_power pow_scalar lgamma digamma", T.SINGULAR)
_enter("linalg_eigh linalg_eig linalg_svd linalg_inv_ex linalg_solve_ex", T.SINGULAR)

# Operations that choose or join elements
_enter("argmax argmin multinomial kthvalue", T.COMPARES)
_enter("topk sort", T.COMPARES | T.CHOOSES)
_enter("where", T.CHOOSES, "`torch.where`")
_enter("index", T.CHOOSES, "indexing")
_enter("index_select index_fill gather masked_fill masked_select masked_scatter", T.CHOOSES)
_enter("tril triu max min amax amin maximum minimum fmax fmin", T.CHOOSES)
_enter("max_pool2d_with_indices", T.CHOOSES | T.CHANNELS, "`max_pool2d`")
_enter("max_pool3d_with_indices adaptive_max_pool2d native_dropout fused_dropout", T.CHOOSES)
_enter("embedding", T.CHOOSES | T.FEATURES)
_enter("embedding_bag", T.CHOOSES)
_enter("slice select narrow split constant_pad_nd", T.CHOOSES | T.SLICES)
_enter("index_put", T.CHOOSES | T.JOINS, "the assignment to chosen rows")
_enter("copy_slices", T.CHOOSES | T.JOINS, "the assignment to a part")
_enter("index_add index_copy scatter scatter_add", T.CHOOSES | T.JOINS)
_enter("cat stack", T.JOINS)
_enter("adaptive_avg_pool2d avg_pool2d upsample_nearest2d upsample_bilinear2d", T.CHANNELS)

# Losses
_enter("cross_entropy", T.LOSS | T.CLASSES)
_enter("nll_loss", T.LOSS | T.CLASSES | T.CHOOSES, "the loss")
_enter("nll_loss2d", T.CHOOSES)
_enter("mse_loss", T.LOSS | T.SQUARES | T.DISTANCE)
_enter("smooth_l1_loss huber_loss", T.SQUARES | T.DISTANCE)
_enter("l1_loss", T.LOSS)
_enter("binary_cross_entropy", T.LOSS | T.CERTAIN)
_enter("binary_cross_entropy_with_logits", T.LOSS | T.CERTAIN | T.LOGITS)

#: Python's names of operations that differ by more than underscores.
_ALIASES = {
    "true_divide": "div", "truediv": "div", "rtruediv": "div", "divide": "div", "rdiv": "div",
    "itruediv": "div_", "rsub": "sub", "subtract": "sub", "rmul": "mul", "multiply": "mul",
    "radd": "add", "rpow": "pow", "rmatmul": "matmul",
}  # fmt: skip
_SIGNS = {
    "@": "matmul", "+": "add", "+=": "add", "iadd": "add", "-": "sub", "-=": "sub", "isub": "sub",
    "imul": "mul",
}  # fmt: skip
_NUMBERED = re.compile(r"(Backward)?\d*$")


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function in a mode: ``linear``, ``add_``, ``.data``."""
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        return "." + str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def written(name: str) -> str:
    """Return a function's name as PyTorch spells it: ``div`` for ``__truediv__``."""
    bare = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    return _ALIASES.get(bare, bare)


def by_function(name: str) -> Operation:
    """Return the operation of a function's name; an in-place one is the same operation."""
    plain = written(name).removesuffix("_")
    plain = _SIGNS.get(plain, plain)
    return _TABLE.get(name) or _TABLE.get(plain) or _unknown(plain)


def by_operator(name: str) -> Operation:
    """Return the operation of an ATen operator, such as ``_softmax`` or ``relu_``."""
    plain = name.strip("_")
    return _TABLE.get(plain) or _TABLE.get(plain.removesuffix("_forward")) or _unknown(plain)


def node_name(node: Node) -> str:
    """Return ``Addmm`` for ``AddmmBackward0``, and the user's name for a custom function's node."""
    return _NUMBERED.sub("", type(node).__name__)


def by_node(node: Node) -> Operation:
    """Return the operation that made a node of the graph."""
    name = node_name(node)
    return _NODES.get(name) or _unknown("".join(map(_spelled, name)).lstrip("_"))


def _unknown(name: str) -> Operation:
    return Operation(name, T(0))


def _spelled(letter: str) -> str:
    return f"_{letter.lower()}" if letter.isupper() else letter


def _as_node(name: str) -> str:
    """``MaxPool2DWithIndices`` for ``max_pool2d_with_indices``."""
    joined = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return re.sub(r"(?<=\d)[a-z]", lambda found: found[0].upper(), joined)


_NODES = {_as_node(name): operation for name, operation in _TABLE.items() if name[0].isalpha()}
