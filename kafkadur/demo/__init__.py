"""The demo: durable subscriptions at work on a real Kafka, and a check of the result against the input.

`python -m kafkadur.demo` runs it (`__main__.py`). The story is in `story.py`, the processes it starts in
`worker.py`, what they leave behind in `ledger.py`, and the check in `verification.py`. The part with Spark is
in `report.py`, its job in `kafkadur_spark/demo`. Nothing in the library needs this package.
"""
