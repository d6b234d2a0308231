"""``gradscope schema``: the config's keys, as JSON Schema or as a list."""

from __future__ import annotations

import json
from typing import Annotated

from gradscope.commands._options import DisplayOptions, PlainFileOptions, flag, takes_groups
from gradscope.commands._write import write_output
from gradscope.config.schema import json_schema
from gradscope.config.schema import keys as config_keys

EXAMPLES = (
    ("gradscope schema --keys", "Every key of a config: its values and its meaning."),
    ("gradscope schema -o gradscope.schema.json", "The JSON Schema, for an editor."),
)


@takes_groups
def run(
    *,
    keys: Annotated[bool, flag("--keys", "List the keys with their values, for people.")] = False,
    file: PlainFileOptions,
    display: DisplayOptions,
) -> None:
    """Print the JSON Schema of the config, for editors and tools; or its keys, for people."""
    if keys:
        # These modules set the look of text, which a schema does not need.
        from gradscope.commands._views import check_look, terminal_width, use_color
        from gradscope.reporters import listings
        from gradscope.reporters.views import TextView

        check_look(display)
        look = TextView(
            width=terminal_width(file.path, display.width),
            color=use_color(file.path, display.color),
        )
        text = listings.keys(config_keys(), look)
    else:
        text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    write_output(text, file.path, force=file.force)
