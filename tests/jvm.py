"""JVMs of the tests live for seconds: compiled quickly, not well, and with the smallest collector, they cost half."""

from __future__ import annotations

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_OPTIONS = "spark.driver.extraJavaOptions"
# A setting of a worker, as processes are given it.
QUICK_SPARK = {f"worker.spark.conf.{SPARK_OPTIONS}": QUICK}
