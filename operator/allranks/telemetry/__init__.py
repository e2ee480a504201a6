"""Listens to what ranks report: messages by HTTP (`server`), decoded strictly (`wire`), the newest kept (`hub`).

The same for a cluster and for a laptop; who a sender is, the driver says. A message changes what is known about its
sender's own replica, and nothing else. `docs/reference/reports-protocol.md` has the protocol and its bounds.
"""
