"""`allranks ui`: pages and a REST interface for jobs of a cluster and for runs of this machine.

The server runs on the user's machine with the user's kubeconfig. It reuses what the commands print: `get`, `describe`,
`logs`, `report`, `queue`, `suspend`, `resume`, `scale` and `delete`.
"""
