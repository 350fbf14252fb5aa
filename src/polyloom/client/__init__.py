"""Predict with a server of ``polyloom serve``, as with a run on this machine; needs neither torch nor the weights."""

from polyloom.client.client import Client, connect

__all__ = ["Client", "connect"]
