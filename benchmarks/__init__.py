"""Benchmarks: kafkadur beside its peers, on the same servers in the same minutes.

Run ``python -m benchmarks <workload>``; what there is, docs/internals/benchmarks.md says. The rooms:

* ``systems/``    one subject a file, behind the protocol of ``systems/base.py``
* ``workloads.py`` which cases a workload consists of
* ``goals.py``    the goals, as data, and their evaluation
* ``runner.py``   one run of one system: worker processes and clock; ``failover.py``: one whose workers die
* ``verification.py``  whether a run was right
* ``children.py``  child processes; ``worker.py``, ``recorder.py``, ``source.py``  what runs inside
* ``rebuild.py``  a command of its own: how long a lost Redis takes to come back
* ``report.py``   medians and ranges, the table and the JSON document

Nothing here is part of the installed package.
"""
