"""Origins of the NaN and Inf in ``nan_scripts/``, found and checked without gradscope.

``line`` is a part of the line that makes it; of a backward that somebody wrote ``written`` is, and
either is right. A script is healthy with ``--healthy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAN_SCRIPTS = Path(__file__).parent / "nan_scripts"


@dataclass(frozen=True, slots=True)
class Expected:
    """``module`` is None where none was executing; ``ops`` are the names that an answer may use."""

    script: str
    step: int
    phase: str  # input | forward | loss | backward
    module: str | None
    ops: tuple[str, ...]
    line: str
    written: str = ""

    @property
    def path(self) -> Path:
        return NAN_SCRIPTS / f"{self.script}.py"

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the lines that have ``line`` or ``written`` in them."""
        source = self.path.read_text(encoding="utf-8").splitlines()
        parts = [part for part in (self.line, self.written) if part]
        return tuple(i for i, text in enumerate(source, 1) if any(p in text for p in parts))


FORWARD = [
    Expected("attention_without_entry", 17, "forward", "attention", ("softmax",), "scores.softmax"),
    Expected("bad_sample", 34, "input", None, (), ""),
    Expected("exclusive_product", 33, "forward", "render", ("div",), "left = torch.cumprod(1 - a"),
    Expected("fp16_overflow", 9, "forward", "fc2", ("linear", "addmm", "mm"), "self.fc2(x)"),
    Expected("groupnorm_eps_zero", 13, "forward", "gn", ("native_group_norm", "group_norm"), "gn("),
    Expected("isolated_node", 1, "input", None, (), "adjacency = normalized(edges)"),
    Expected("layernorm_by_hand", 11, "forward", "norm", ("div",), "(x - mean) / std"),
    Expected("rnn_exploding", 20, "forward", "cell.recur", ("linear", "mm", "matmul"), "recur("),
    Expected("singular_matrix", 15, "forward", "0", ("reciprocal",), "scale = torch.reciprocal"),
    Expected("softmax_by_hand", 23, "forward", "2", ("exp",), "weights = torch.exp(scores)"),
    Expected("std_of_one", 13, "forward", "1", ("std",), "x.std(0)"),
    Expected("vanishing_norm", 32, "forward", "normalize", ("div",), "return x / x.norm"),
]  # fmt: skip
LOSS = [
    Expected("bad_target", 18, "input", None, (), ""),  # it came in, and met the loss first
    Expected("cosine_by_hand", 7, "loss", None, ("div",), "return dot / lengths"),
    Expected("ctc_infinite", 14, "loss", None, ("ctc_loss",), "loss = ctc("),
    Expected("empty_mask", 28, "loss", None, ("div",), "return total / count"),
    Expected("exploding_weights", 11, "loss", None, ("pow",), "loss = (y**2).mean()"),
    Expected("focal_loss", 12, "loss", None, ("log",), "log_pt = pt.log()"),
    Expected("gaussian_nll", 26, "loss", None, ("log",), "logs = torch.log(var)"),
    Expected("kl_overflow", 21, "loss", None, ("exp",), "spread = logvar.exp()"),
    Expected("log1p_minus_one", 10, "loss", None, ("log1p",), "torch.log1p(-hazard)"),
    Expected("log_of_zero", 19, "loss", None, ("log",), "torch.log(1 - p + eps)"),
    Expected("logit_of_one", 52, "loss", None, ("logit",), "targets = torch.logit("),
    Expected("returns_of_one_step", 11, "input", None, (), "returns.std() + 1e-8"),
    Expected("zero_times_infinity", 36, "loss", None, ("reciprocal", "div"), "force = 1.0 /"),
]  # fmt: skip
BACKWARD = [
    Expected("acos_at_one", 8, "backward", None, ("acos",), "loss = (torch.acos(cosine)"),
    Expected("custom_backward", 11, "backward", "1", ("SignedLog",), "SignedLog.apply", "(x / x)"),
    Expected("fp16_gradient", 27, "backward", "", ("mul",), "self.fc2(h * gain)"),
    Expected("gradient_penalty", 9, "backward", None, ("sqrt",), "norm = torch.sqrt("),
    Expected("hypot_at_origin", 44, "backward", "", ("hypot",), "return torch.hypot("),
    Expected("minibatch_std", 18, "backward", "mbstd", ("sqrt",), "std = torch.sqrt(variance"),
    Expected("repeated_eigenvalues", 12, "backward", "spectrum", ("linalg_eigh", "eigh"), ".eigh("),
    Expected("signed_root", 16, "backward", "root", ("pow",), "x.sign() * (x.abs()"),
    Expected("sqrt_at_zero", 22, "backward", None, ("sqrt",), "return torch.sqrt(squared"),
    # The infinity is made in forward; where() hides it from the loss, and not from backward.
    Expected("where_trap", 16, "forward", "log", ("log",), "torch.log(x), torch.zeros_like"),
]  # fmt: skip
ALL = [*FORWARD, *LOSS, *BACKWARD]
