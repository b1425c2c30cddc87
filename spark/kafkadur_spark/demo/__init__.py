"""The Spark part of the demo: the job that makes a report of delays, and its chart.

`python -m kafkadur.demo` starts it (`kafkadur/demo/report.py`); nothing in the library needs this package.
"""
