"""Receives reports of ranks over HTTP (`server`), decodes them strictly (`schema`) and keeps the newest (`store`).

The same code serves a cluster and a laptop; the caller authenticates senders. A message changes only the data of its
sender's own replica. `docs/reference/reports-protocol.md` describes the protocol and its limits.
"""
