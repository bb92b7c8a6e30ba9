"""pydantic: `pydantic_kinds.py`, by an interpreter that has it. Prints a line for each kind of field: its
name, the schema of a model with one such field, and its instances that pydantic itself has written.
"""

from __future__ import annotations

import json

from pydantic import VERSION, create_model
from pydantic_types import FORBID_THEIR_VALUE, OWN
from standard_types import STANDARD


def main() -> None:
    print(json.dumps({"of": f"pydantic {VERSION}"}))
    for name, (kind, value) in (STANDARD | OWN).items():
        model = create_model("Answer", field=(kind, ...))
        text = model(field=value).model_dump_json(by_alias=True, round_trip=True)
        instances = [] if name in FORBID_THEIR_VALUE else [text]
        print(json.dumps({"name": name, "schema": model.model_json_schema(), "instances": instances}))


if __name__ == "__main__":
    main()
