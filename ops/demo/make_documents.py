"""Writes documents.jsonl, the input of the demo, from the texts below: `python ops/demo/make_documents.py`.

Three desks of a mail room, each with one instruction shown by examples. All requests of a desk begin with the
same tokens, which the worker computes and stores once. Every row carries the answer a reader would give. The
records of one desk have to fit a schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("documents.jsonl")
RECORD = {
    "type": "object",
    "properties": {
        "sender": {"type": "string", "minLength": 1, "maxLength": 60},
        "euros": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]},
    },
    "required": ["sender", "euros"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Desk:
    """One instruction: `label` asks the question; examples and documents are pairs (text, answer). `schema`:
    of the answers, where these are JSON."""

    name: str
    instruction: str
    kind: str
    label: str
    examples: tuple[tuple[str, str], ...]
    documents: tuple[tuple[str, str], ...]
    max_tokens: int
    schema: dict[str, Any] | None = None

    @property
    def gap(self) -> str:
        """Before an answer: JSON begins a line, since its first token has no space."""
        return "\n" if self.schema else " "

    def prefix(self) -> str:
        shown = "".join(
            f"{self.kind}: {text}\n{self.label}:{self.gap}{answer}\n\n" for text, answer in self.examples
        )
        return f"{self.instruction}\n\n{shown}"

    def rows(self) -> Iterator[dict[str, Any]]:
        prefix = self.prefix()
        for number, (text, answer) in enumerate(self.documents, 1):
            yield {
                "custom_id": f"{self.name}-{number:02}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {
                    "prompt": f"{prefix}{self.kind}: {text}\n{self.label}:{self.gap.rstrip(' ')}",
                    "max_tokens": self.max_tokens,
                    "temperature": 0,
                    **self.form(),
                    "metadata": {"expected": answer},
                },
            }

    def form(self) -> dict[str, Any]:
        """How an answer ends: with its line, or by its schema."""
        if self.schema is None:
            return {"stop": "\n"}
        return {"structured_outputs": {"json": self.schema, "disable_any_whitespace": True}}


def record(sender: str, euros: float | None = None) -> str:
    return json.dumps({"sender": sender, "euros": euros}, separators=(",", ":"))


DEADLINE = Desk(
    name="deadline",
    instruction="Read each letter and write down the date by which the reader must act.",
    kind="Letter",
    label="Deadline",
    max_tokens=12,
    examples=(
        (
            "The City Water Office will replace the meters in your street. Please return the enclosed form "
            "by 14 March 2025 so that an appointment can be made.",
            "14 March 2025",
        ),
        (
            "Northfield Insurance has received your claim of 2 June 2025. We still need two photographs of "
            "the damage. They must reach us no later than 30 June 2025.",
            "30 June 2025",
        ),
        (
            "Your membership of the Harbour Library ends soon. To keep it, pay the yearly fee before "
            "1 October 2025. The fee has not changed since 2023.",
            "1 October 2025",
        ),
        (
            "On 5 May 2025 the Building Authority inspected the roof of the warehouse. Two faults were "
            "found. The owner has to repair them by 20 July 2025.",
            "20 July 2025",
        ),
    ),
    documents=(
        (
            "The Tax Office has not yet received the annual return of your company. Please send it by "
            "31 May 2025. A late return costs a fee of 50 euros.",
            "31 May 2025",
        ),
        (
            "Greenline Energy is changing its tariffs. If you wish to keep the old contract, you must tell "
            "us in writing no later than 15 August 2025.",
            "15 August 2025",
        ),
        (
            "Thank you for your order of 3 April 2025. The first instalment is due before 18 April 2025. "
            "Goods are sent as soon as it has arrived.",
            "18 April 2025",
        ),
        (
            "The Office for Road Traffic reminds you that the lorry with the number plate KR 4410 must be "
            "inspected by 9 September 2025.",
            "9 September 2025",
        ),
        (
            "Your application for a market stall was received on 11 January 2025. Please pay the stall fee "
            "by 25 January 2025, or the place will be given to the next applicant.",
            "25 January 2025",
        ),
        (
            "Riverside Housing will read the heating meters in all flats. Tenants who cannot be at home must "
            "report their own readings by 12 December 2025.",
            "12 December 2025",
        ),
        (
            "The Regional Court has set aside your request of 4 February 2025. An appeal must be filed by "
            "6 March 2025 at the court's office.",
            "6 March 2025",
        ),
        (
            "Baltic Freight Company asks all suppliers to confirm their delivery dates for the coming "
            "season. Confirmations must reach us no later than 22 November 2025.",
            "22 November 2025",
        ),
        (
            "On 17 June 2025 the lift in your building was checked. The emergency telephone does not work. "
            "The owner has to replace it by 1 August 2025.",
            "1 August 2025",
        ),
        (
            "The School Board invites bids for new furniture in four schools. Sealed offers have to be "
            "handed in by 28 February 2025.",
            "28 February 2025",
        ),
        (
            "Your licence for the sale of garden chemicals ends soon. To renew it, send the form and the fee "
            "before 10 July 2025. The last renewal was in 2020.",
            "10 July 2025",
        ),
        (
            "Summit Telecom has sent you a new router. Please return the old one by 19 October 2025, "
            "otherwise we have to charge it to your account.",
            "19 October 2025",
        ),
    ),
)

RECORDS = Desk(
    name="record",
    instruction="Read each notice and write down who sent it, and how many euros are to be paid, if any.",
    kind="Notice",
    label="Record",
    max_tokens=60,
    schema=RECORD,
    examples=(
        (
            "From the City Water Office. The supply in Mill Lane will be off on Monday from nine to noon "
            "while a valve is replaced.",
            record("City Water Office"),
        ),
        (
            "Dear customer, Northfield Insurance has moved. Letters sent to the old address will be "
            "forwarded until the end of the year.",
            record("Northfield Insurance"),
        ),
        (
            "Invoice 20518 for 40 boxes of paper, 312 euros, payable within 14 days to Baker Office "
            "Supplies. Thank you for your order.",
            record("Baker Office Supplies", 312),
        ),
        (
            "Invoice 884 for the repair of a roof, 2650 euros, payable within 30 days to Harbour Roofing. "
            "Thank you for your trust.",
            record("Harbour Roofing", 2650),
        ),
        (
            "We confirm that the goods left our warehouse this morning. With kind regards, Eastern Freight "
            "Company, dispatch desk.",
            record("Eastern Freight Company"),
        ),
    ),
    documents=(
        (
            "From the Greenwood Forest Office. The path along the lake is closed to walkers until the fallen "
            "trees have been removed.",
            record("Greenwood Forest Office"),
        ),
        (
            "Dear customer, Summit Telecom will work on the lines in your street on Tuesday night. The "
            "network may be slow for about two hours.",
            record("Summit Telecom"),
        ),
        (
            "Invoice 771 for the repair of two pumps, 1480 euros, payable within 30 days to Anchor Pump "
            "Services. Thank you for your trust.",
            record("Anchor Pump Services", 1480),
        ),
        (
            "The Museum of Glass opens its new hall on 4 May. Entry is free of charge on the first weekend.",
            record("Museum of Glass"),
        ),
        (
            "We confirm your booking of the large hall for 16 September. With kind regards, Riverside "
            "Conference Centre, bookings desk.",
            record("Riverside Conference Centre"),
        ),
        (
            "From the Regional Tax Office. Your tax number has changed. Please use the new number in all "
            "letters and returns.",
            record("Regional Tax Office"),
        ),
        (
            "Dear tenant, Lakeview Housing has hired a new company to clean the stairs. It starts work on "
            "the first of next month.",
            record("Lakeview Housing"),
        ),
        (
            "Invoice 3392 for the rent of one crane over five days, 2150 euros, payable within 14 days "
            "to Ironbridge Machine Hire.",
            record("Ironbridge Machine Hire", 2150),
        ),
        (
            "The Central Post Office has longer opening hours in December. Parcels can be collected until "
            "eight in the evening.",
            record("Central Post Office"),
        ),
        (
            "We regret that the replacement parts will arrive a week late. With kind regards, Orion Bicycle "
            "Factory, customer service.",
            record("Orion Bicycle Factory"),
        ),
        (
            "From the Harbour Authority. From 1 June all boats longer than ten metres must announce their "
            "arrival by radio.",
            record("Harbour Authority"),
        ),
        (
            "Dear subscriber, Morning Courier will appear on six days a week from April. The price stays as "
            "it is.",
            record("Morning Courier"),
        ),
    ),
)

SENTIMENT = Desk(
    name="sentiment",
    instruction="Read each message from a business customer and say whether it is positive or negative.",
    kind="Message",
    label="Sentiment",
    max_tokens=4,
    examples=(
        ("The delivery came a day early and every box was intact. Our stores are very pleased.", "positive"),
        ("The invoice was wrong for the third time and nobody answers the telephone.", "negative"),
        ("Your technician repaired the press within an hour. Excellent work.", "positive"),
        ("Half of the chairs arrived broken and the replacement is late. We are disappointed.", "negative"),
        ("The new portal is easy to use and saves our office a lot of time.", "positive"),
        ("After the update the scanner stopped working and we lost a whole day.", "negative"),
    ),
    documents=(
        ("The training was clear and friendly, and our team enjoyed it very much.", "positive"),
        ("The goods were two weeks late and the boxes were wet. This is not acceptable.", "negative"),
        ("Great service again: ordered in the morning, installed in the afternoon.", "positive"),
        ("We waited a month for a reply, and the answer was useless.", "negative"),
        ("The printers run quietly and without a single fault since March. We are delighted.", "positive"),
        ("The heating failed again, and your repair made it worse.", "negative"),
        ("Thank you for the quick help with our order. We will gladly buy from you again.", "positive"),
        ("The software crashes every day and support does nothing about it.", "negative"),
        ("The catering was wonderful and all our guests praised it.", "positive"),
        ("You charged us twice and refuse to pay the money back. We will cancel the contract.", "negative"),
        ("The paint is of excellent quality and the colour is exactly right.", "positive"),
        ("The shelves are unstable, two screws were missing, and the manual is a mess.", "negative"),
    ),
)

DESKS = (DEADLINE, RECORDS, SENTIMENT)


def text() -> str:
    rows = (row for desk in DESKS for row in desk.rows())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
