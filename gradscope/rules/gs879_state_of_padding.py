"""GS879: the last state of a recurrent network is that of padding."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS879",
    name="state-of-padding",
    severity="warning",
    summary="a recurrent network reads padding after the text, and its last state is used",
    what=(
        "Reads the first tokens of each nn.Embedding, whose padding is its `padding_idx` or token "
        "0, and the text of the "
        "class that owns the nn.RNN, nn.LSTM or nn.GRU after it. It fires if, in half of the "
        "sequences, the second half and more is padding at the end, the network gets their vectors "
        "in this order, "
        "and only its last state is used. A packed sequence, a bidirectional network, or a class "
        "that reads other states is silent."
    ),
    why=(
        "After the last word the network takes a step for each padding token, and forgets the "
        "text: with 10 words and 50 of padding little of it is left."
    ),
    fix=(
        "Pack the sequences: `pack_padded_sequence(x, lengths, batch_first=True, "
        "enforce_sorted=False)`. Or take the state of the last word: "
        "`out[torch.arange(len(out)), lengths - 1]`."
    ),
    sources=(
        "PyTorch, torch.nn.utils.rnn.pack_padded_sequence: h_n is the state of the last word",
        "PyTorch forum: LSTM with padding, and the hidden state at the last time step",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS513", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each network."""
    for one in loop.facts_of("padded-state"):
        index, sequences = (int(figure) for figure in one.figures)
        yield RULE.in_loop(
            loop,
            one.name,
            f"in {one.count} of {sequences} sequences, token {index}, which is padding, fills the "
            f"second half or more, and the last state of `{one.name}` is the state after it.",
            value=one.count / sequences,
            location=one.location,
            model=one.model,
        )
