"""`python -m kafkadur.cli`: the command line where the script `kafkadur` is not on PATH; nothing else."""

from kafkadur.cli import main

main()
