"""Tests of sources and sinks, one kind after the other, on a real Spark and real parts: Kafka, PostgreSQL, Iceberg."""
