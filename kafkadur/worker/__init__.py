"""Handlers as a service: an app declares them, a worker runs the app (`kafkadur run module:app`)."""

from kafkadur.worker.app import App, Declared
from kafkadur.worker.options import SubscribeOptions

__all__ = ["App", "Declared", "SubscribeOptions"]
