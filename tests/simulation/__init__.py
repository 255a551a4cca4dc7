"""The deterministic simulation: coordinators, workers, services and a broker on one thread with virtual time. It runs
the production cores; only what surrounds them (broker, disk, network, data) is a model."""
