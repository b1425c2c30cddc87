"""The demo: durable subscriptions at work on a real Kafka, and a check of the result against the input.

`python -m examples.demo` runs it (`__main__.py`). The story is in `story.py`, the processes it starts in
`worker.py`, what they leave behind in `ledger.py`, and the check in `verification.py`. The part with Spark is
in `report.py`, its job in `job.py`, what that computes in `delays.py`, its picture in `chart.py`. Run it in a
checkout (`make demo`).
"""
