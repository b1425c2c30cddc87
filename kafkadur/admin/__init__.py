"""Looking at subscriptions from outside, and changing them."""

from kafkadur.admin.changes import Admin

__all__ = ["Admin"]
