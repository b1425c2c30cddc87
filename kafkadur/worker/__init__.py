"""What runs handlers as a service: an app declares them, a worker runs it (`kafkadur run module:app`)."""

from kafkadur.worker.app import App, Declared, SubscribeOptions

__all__ = ["App", "Declared", "SubscribeOptions"]
