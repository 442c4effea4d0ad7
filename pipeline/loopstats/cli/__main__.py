"""`python -m loopstats.cli`: the command line without an installed script."""

from loopstats.cli import main

main()
