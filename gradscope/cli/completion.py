"""Completion in bash, which splits words at `:` and `=`.

For ``torchvision:res`` bash passes three words, and expects completions of ``res``. Here such words
are joined again. Other shells pass full words.
"""

from __future__ import annotations

from typing import Final

from gradscope.click import (
    COMPLETION_SCRIPT_BASH,
    COMPLETION_SCRIPTS,
    BashComplete,
    CompletionItem,
    add_completion_class,
)

_ENDS: Final = (":", "=")
# No blank after what is only the beginning of a word: a source of models, a key, a folder, a list.
_SCRIPT: Final = COMPLETION_SCRIPT_BASH.replace(
    "    return 0\n",
    """\
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:=/,] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
""",
)


class WholeWords(BashComplete):
    """Bash's completion with words as the user typed them."""

    source_template = _SCRIPT
    _kept = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and that word."""
        args, incomplete = super().get_completion_args()
        *before, word = joined([*args, incomplete])
        self._kept = max(word.rfind(end) for end in _ENDS) + 1
        return before, word

    def format_completion(self, item: CompletionItem) -> str:
        """Return the text for bash to put in place of its last word."""
        return super().format_completion(item)[self._kept :]


def joined(words: list[str]) -> list[str]:
    """Join ``["torchvision", ":", "res"]`` to the word that the user typed."""
    found: list[str] = []
    for word in words:
        if found and (word in _ENDS or found[-1].endswith(_ENDS)):
            found[-1] += word
        else:
            found.append(word)
    return found


def install() -> None:
    """Install the completion in typer, and in the shell script that typer writes."""
    add_completion_class(WholeWords, "bash")
    COMPLETION_SCRIPTS["bash"] = _SCRIPT
