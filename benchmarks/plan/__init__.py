"""What a large installation needs, calculated from costs that were measured: ``python -m benchmarks plan``.

`costs.json` holds the costs; `measuring.py` measures them, `planning.py` calculates, `command.py` shows.
"""
