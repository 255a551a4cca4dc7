"""Kafka brokers in Docker containers, for tests: one broker, a cluster of three, one with SASL_SSL and ACLs."""
