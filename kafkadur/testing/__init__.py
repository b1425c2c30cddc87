"""The pytest plugin, for tests of applications."""
