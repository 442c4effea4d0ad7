"""The job file for `spark-submit`, with the words of `loopstats spark`: `spark-submit spark_job.py detect --lake DIR`.

A room of its own because `spark-submit` wants a path, not a module; `loopstats spark job` prints it.
"""

import sys

from loopstats.cli import main

if __name__ == "__main__":
    main(["spark", *sys.argv[1:]])
