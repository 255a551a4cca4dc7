"""The data plane on PySpark: one loop per task on a Spark driver, with sources, transforms and sinks.

Importing this package, or `kinds` and the options, starts nothing and imports no PySpark.
"""
