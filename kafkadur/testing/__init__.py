"""What tests of applications use: the pytest plugin."""
