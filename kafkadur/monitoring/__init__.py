"""Monitoring of workers and gateways: probes, metrics, logs."""
