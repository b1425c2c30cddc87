"""Fixtures of the service, for the tests of this folder."""

from tests.serving import address, api, callers, connection, place

__all__ = ["address", "api", "callers", "connection", "place"]
