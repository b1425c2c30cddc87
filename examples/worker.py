"""An app for `kafkadur run`: late flights are counted by carrier, what is no flight becomes a dead letter.

    kafkadur up --topic flights:3
    kafkadur publish flights - < examples/flights.jsonl  # one JSON object a line, with carrier and dep_delay
    kafkadur run --app-dir examples worker:app

`kafkadur run --reload` starts it anew when this file changes.
"""

import json
from collections import Counter
from datetime import timedelta

import kafkadur

#: Minutes from which on a flight is late.
LATE = 15

app = kafkadur.App()
late: Counter[str] = Counter()


@app.subscription(
    "flights",
    durable="late",
    type="shared",
    start="earliest",
    concurrency=4,
    redelivery=kafkadur.Redelivery(max_attempts=5, backoff=timedelta(seconds=1)),
)
async def count(message: kafkadur.Delivery) -> None:
    """Count a late flight; returning acknowledges it."""
    try:
        flight = json.loads(message.value or b"")
        delay = float(flight["dep_delay"] or 0)
        carrier = str(flight["carrier"])
    except (KeyError, TypeError, ValueError) as error:
        raise kafkadur.Reject(f"no flight: {type(error).__name__}") from error
    if delay >= LATE:
        late[carrier] += 1
        print(f"{carrier}: {late[carrier]} late", flush=True)
